// Regression members: ridge autoregressions of seasonal differences, by squares or by absolute loss.

#include "series.hpp"

namespace tidegrid::realtime {
namespace {

// Weighted normal equations of a series on its own lags and a constant.
struct NormalEquations {
    Series d;
    std::span<const std::int64_t> lags;
    std::size_t width;
    std::vector<double> gram, moment, row;
    std::int64_t next;

    NormalEquations(Series d_, std::span<const std::int64_t> lags_, std::int64_t start)
        : d(d_), lags(lags_), width(lags_.size() + 1), gram(width * width), moment(width), row(width), next(start) {}

    // Add the rows up to `end`; `weight` is empty where all count the same.
    void add(std::int64_t end, Series weight) {
        row.back() = 1.0;
        for (; next < end; ++next) {
            for (std::size_t i = 0; i + 1 < width; ++i) row[i] = d[next - lags[i]];
            for (std::size_t i = 0; i < width; ++i) {
                const double scaled = (weight.empty() ? 1.0 : weight[next]) * row[i];
                moment[i] += scaled * d[next];
                for (std::size_t j = 0; j <= i; ++j) gram[i * width + j] += scaled * row[j];
            }
        }
    }

    // Solve with a penalty of `ridge` times the mean diagonal, by Cholesky; NaN where the matrix is not positive.
    void solve(double ridge, std::span<double> beta) const {
        const std::size_t p = width - 1;
        const double least = 1e-9 * gram[p * width + p];
        double trace = 0.0;
        for (std::size_t i = 0; i < p; ++i) trace += gram[i * width + i];
        const double penalty = ridge * trace / static_cast<double>(p) + least;
        std::vector<double> root(gram);
        for (std::size_t i = 0; i < width; ++i) root[i * width + i] += i < p ? penalty : least;
        for (std::size_t i = 0; i < width; ++i)
            for (std::size_t j = 0; j <= i; ++j) {
                double rest = root[i * width + j];
                for (std::size_t k = 0; k < j; ++k) rest -= root[i * width + k] * root[j * width + k];
                if (i == j && !(rest > 0.0)) {
                    std::ranges::fill(beta, std::numeric_limits<double>::quiet_NaN());
                    return;
                }
                root[i * width + j] = i == j ? std::sqrt(rest) : rest / root[j * width + j];
            }
        for (std::size_t i = 0; i < width; ++i) {
            double rest = moment[i];
            for (std::size_t k = 0; k < i; ++k) rest -= root[i * width + k] * beta[k];
            beta[i] = rest / root[i * width + i];
        }
        for (std::size_t i = width; i-- > 0;) {
            double rest = beta[i];
            for (std::size_t k = i + 1; k < width; ++k) rest -= root[k * width + i] * beta[k];
            beta[i] = rest / root[i * width + i];
        }
    }
};

}  // namespace

extern "C" {

// Autoregression of x[t] - x[t - base] on its own lags (ascending), carried forward one hour after another.
//
// base    period of the difference, hours; 0 regresses the series itself
// ridge   penalty as a share of the mean diagonal of the Gram matrix
// rounds  1 for least squares; more for as many rounds of reweighting towards the least absolute loss, a row's weight
//         being one over its last absolute residual (floored at 0.3 of the mean one)
// refits  positions in `ends` at which the coefficients are learnt anew, ascending, the first 0
// low, high  bounds of what a forecast may be; recursion cannot run away past them
// beta    coefficients of the lags and the constant, a row for each refit, NaN before; a single row that is used as it is
//         where there are no refits
// out     left as it is where the past is too short
[[gnu::visibility("default")]] bool tg_autoregression(Array<const double> x, std::int64_t base,
                                                      Array<const std::int64_t> lags_, double ridge,
                                                      std::int64_t rounds, Array<const std::int64_t> refits,
                                                      Array<const std::int64_t> ends, double low, double high,
                                                      Array<double> beta_, Array<double> out) {
    const Forecasts f(x, ends, out);
    const std::span<const std::int64_t> lags = lags_;
    const auto p = lags.size();
    const std::span<double> betas = beta_;
    if (!f.fit() || base < 0 || rounds < 1 || lags.empty()) return false;
    if (lags.front() < 1 || !std::ranges::is_sorted(lags)) return false;
    if (betas.size() != (p + 1) * static_cast<std::size_t>(std::max<std::int64_t>(refits.size, 1))) return false;
    const auto n = static_cast<std::int64_t>(f.x.size());
    const std::int64_t start = base + lags.back();
    std::vector<double> d(f.x.begin(), f.x.end()), path, diff, weight;
    for (std::int64_t t = 0; t < n && base > 0; ++t) d[t] = t < base ? 0.0 : f.x[t] - f.x[t - base];
    path.resize(static_cast<std::size_t>(n + f.horizon));
    diff.resize(path.size());
    NormalEquations squares(d, lags, start);
    std::size_t next_fit = 0;
    bool fitted = refits.size == 0;
    std::span<double> beta = betas.first(p + 1);
    for (std::size_t o = 0; o < f.ends.size(); ++o) {
        const std::int64_t end = f.ends[o];
        const bool due = next_fit < static_cast<std::size_t>(refits.size) &&
                         refits.data[next_fit] == static_cast<std::int64_t>(o);
        if (due) beta = betas.subspan((p + 1) * next_fit++, p + 1);
        if (end - start < 2 * (static_cast<std::int64_t>(p) + 1) || (fitted && !due && std::isnan(beta[0]))) continue;
        if (due || !fitted) {
            fitted = true;
            squares.add(end, {});
            squares.solve(ridge, beta);
            for (std::int64_t turn = 1; turn < rounds; ++turn) {
                weight.assign(static_cast<std::size_t>(end), 1.0);
                double total = 0.0;
                for (std::int64_t t = start; t < end; ++t) {
                    double e = d[t] - beta[p];
                    for (std::size_t i = 0; i < p; ++i) e -= beta[i] * d[t - lags[i]];
                    weight[t] = std::abs(e);
                    total += weight[t];
                }
                const double floor = 0.3 * total / static_cast<double>(end - start) + 1e-12;
                for (std::int64_t t = start; t < end; ++t) weight[t] = 1.0 / std::max(weight[t], floor);
                NormalEquations absolute(d, lags, start);
                absolute.add(end, weight);
                absolute.solve(ridge, beta);
            }
        }
        std::copy_n(f.x.begin(), end, path.begin());
        std::copy_n(d.begin(), end, diff.begin());
        for (std::int64_t k = 0; k < f.horizon; ++k) {
            const std::int64_t u = end + k;
            const double back = base > 0 ? path[u - base] : 0.0;
            double value = beta[p] + back;
            for (std::size_t i = 0; i < p; ++i) value += beta[i] * diff[u - lags[i]];
            value = std::min(std::max(value, low), high);
            path[u] = value;
            diff[u] = value - back;
            f.row(o)[k] = value;
        }
    }
    return true;
}

}  // extern "C"

}  // namespace tidegrid::realtime
