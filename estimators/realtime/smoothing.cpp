// Exponential smoothing members: double-seasonal Holt–Winters with an AR(1) term, and damped levels.
//
// Each is fitted on a multi-step absolute loss: what is wanted is good forecasts one to two days ahead, and the
// one-step loss that is usual picks smoothing that reacts far too fast for that.

#include <array>

#include "series.hpp"

namespace tidegrid::realtime {
namespace {

using Parameters = std::array<double, 4>;  // alpha, delta, omega, phi; or their logits

// Taylor (2003), additive, in error-correction form: with e the error before the AR term, the level moves by alpha e,
// the daily pattern by delta e and the weekly one by omega e; the forecast k ahead adds phi**k e.
struct HoltWinters {
    double level = 0.0;
    double error = 0.0;
    std::array<double, DAY> day{};
    std::array<double, WEEK> week{};

    // Start from the level, the daily and the weekly pattern that the first two weeks show.
    HoltWinters(Series x, bool weekly) {
        const auto n = static_cast<std::int64_t>(x.size());
        const bool two_weeks = n >= 2 * WEEK;
        const std::int64_t first = std::min(n, two_weeks ? 2 * WEEK : std::max(DAY, (n / DAY) * DAY));
        level = mean(x.first(static_cast<std::size_t>(first)));
        std::array<double, DAY> count{};
        for (std::int64_t t = 0; t < first; ++t) {
            day[t % DAY] += x[t] - level;
            count[t % DAY] += 1.0;
        }
        // half an observation of "no pattern" keeps a single day from being taken at face value
        for (std::int64_t s = 0; s < DAY; ++s) day[s] /= count[s] + 0.5;
        if (!weekly || !two_weeks) return;
        const double weeks = static_cast<double>(first) / WEEK + 1.0;
        for (std::int64_t t = 0; t < first; ++t) week[t % WEEK] += (x[t] - level - day[t % DAY]) / weeks;
    }

    double expected(std::int64_t t) const { return level + day[t % DAY] + week[t % WEEK]; }

    void learn(std::int64_t t, double value, const Parameters& p) {
        error = value - level - day[t % DAY] - week[t % WEEK];
        level += p[0] * error;
        day[t % DAY] += p[1] * error;
        week[t % WEEK] += p[2] * error;
    }
};

// Map the real line to (0, 1) for each parameter; the weekly one is 0 without a weekly pattern.
Parameters from_logits(const Parameters& logits, bool weekly) {
    Parameters p;
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = 1.0 / (1.0 + std::exp(-std::clamp(logits[i], -12.0, 12.0)));
    if (!weekly) p[2] = 0.0;
    return p;
}

// Multi-step absolute loss at every 7th hour from the first week on, over the leads 1, 4, 7 … `horizon`.
struct Loss {
    Series x;
    HoltWinters start;
    bool weekly;
    std::int64_t horizon;

    double operator()(const Parameters& logits) const {
        constexpr std::int64_t stride = 7, step = 3;
        const Parameters p = from_logits(logits, weekly);
        const auto end = static_cast<std::int64_t>(x.size());
        const std::int64_t from = std::min(WEEK, end / 2);
        const double fade = std::pow(p[3], static_cast<double>(step));
        HoltWinters state = start;
        double loss = 0.0;
        std::int64_t count = 0;
        for (std::int64_t t = 0; t < end; ++t) {
            state.learn(t, x[t], p);
            if (t < from || (end - 1 - t) % stride != 0) continue;
            double rest = p[3] * state.error;
            for (std::int64_t k = 1; k <= horizon && t + k < end; k += step) {
                loss += std::abs(x[t + k] - state.expected(t + k) - rest);
                ++count;
                rest *= fade;
            }
        }
        loss /= static_cast<double>(std::max<std::int64_t>(count, 1));
        // a whisper of preference for slow seasons settles ties on short or constant histories
        return loss * (1.0 + 1e-3 * (p[1] + p[2]));
    }
};

struct Vertex {
    Parameters at;
    double loss;
};

Parameters along(const Parameters& from, const Parameters& to, double share) {
    Parameters out;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = from[i] + share * (to[i] - from[i]);
    return out;
}

// Nelder and Mead (1965) from `guess`, at most about `budget` losses.
Parameters minimize(const Loss& loss, const Parameters& guess, std::int64_t budget) {
    std::array<Vertex, 5> simplex;
    for (std::size_t i = 0; i < simplex.size(); ++i) {
        simplex[i].at = guess;
        if (i) simplex[i].at[i - 1] += 1.2;
        simplex[i].loss = loss(simplex[i].at);
    }
    const auto by_loss = [](const Vertex& a, const Vertex& b) { return a.loss < b.loss; };
    Vertex& worst = simplex[4];
    for (std::int64_t used = 5; used < budget;) {
        std::stable_sort(simplex.begin(), simplex.end(), by_loss);
        if (worst.loss - simplex[0].loss <= 1e-4 * std::abs(simplex[0].loss)) break;
        Parameters centre{};
        for (std::size_t i = 0; i < 4; ++i)
            for (std::size_t j = 0; j < 4; ++j) centre[j] += simplex[i].at[j] / 4.0;
        const auto tried = [&](const Vertex& towards, double share) {
            ++used;
            const Parameters at = along(centre, towards.at, share);
            return Vertex{at, loss(at)};
        };
        const Vertex mirrored = tried(worst, -1.0);
        if (mirrored.loss < simplex[0].loss) {
            const Vertex further = tried(worst, -2.0);
            worst = further.loss < mirrored.loss ? further : mirrored;
        } else if (mirrored.loss < simplex[3].loss) {
            worst = mirrored;
        } else {
            const Vertex inner = tried(mirrored.loss < worst.loss ? mirrored : worst, 0.5);
            if (inner.loss < std::min(mirrored.loss, worst.loss)) {
                worst = inner;
            } else {
                for (std::size_t i = 1; i < simplex.size(); ++i) {
                    simplex[i].at = along(simplex[0].at, simplex[i].at, 0.5);
                    simplex[i].loss = loss(simplex[i].at);
                }
                used += 4;
            }
        }
    }
    return std::min_element(simplex.begin(), simplex.end(), by_loss)->at;
}

constexpr std::array LEVELS{0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0};

}  // namespace

extern "C" {

// Fit the four smoothing parameters (logits, in place of the guess) on `x`.
[[gnu::visibility("default")]] bool tg_holt_winters_fit(Array<const double> x, std::int64_t horizon,
                                                        std::int64_t budget, bool weekly, Array<double> logits) {
    if (x.size < 1 || logits.size != 4) return false;
    Parameters guess;
    std::copy_n(logits.data, 4, guess.begin());
    const Loss loss{x, HoltWinters(x, weekly), weekly, horizon};
    const Parameters best = minimize(loss, guess, budget);
    std::copy(best.begin(), best.end(), logits.data);
    return true;
}

// Write the forecasts from each of the ascending `ends`, filtering once; the start is learnt before the first end.
[[gnu::visibility("default")]] bool tg_holt_winters(Array<const double> x, Array<const std::int64_t> ends,
                                                    Array<const double> logits, bool weekly, Array<double> out) {
    const Forecasts f(x, ends, out);
    if (!f.fit() || logits.size != 4) return false;
    if (f.ends.empty()) return true;
    Parameters p;
    std::copy_n(logits.data, 4, p.begin());
    p = from_logits(p, weekly);
    HoltWinters state(f.x.first(static_cast<std::size_t>(f.ends[0])), weekly);
    std::int64_t t = 0;
    for (std::size_t o = 0; o < f.ends.size(); ++o) {
        for (; t < f.ends[o]; ++t) state.learn(t, f.x[t], p);
        double rest = state.error;
        for (std::int64_t k = 0; k < f.horizon; ++k) {
            rest *= p[3];
            f.row(o)[k] = state.expected(t + k) + rest;
        }
    }
    return true;
}

// Simple exponential smoothing, with the weight of LEVELS that has the least multi-step absolute loss before each end.
[[gnu::visibility("default")]] bool tg_level(Array<const double> x, Array<const std::int64_t> ends,
                                             Array<double> out) {
    const Forecasts f(x, ends, out);
    if (!f.fit()) return false;
    std::array<double, LEVELS.size()> level{}, loss{};
    if (!f.ends.empty()) level.fill(f.x[0]);
    std::int64_t t = 0;
    for (std::size_t o = 0; o < f.ends.size(); ++o) {
        for (; t < f.ends[o]; ++t) {
            for (std::size_t i = 0; i < LEVELS.size(); ++i) level[i] += LEVELS[i] * (f.x[t] - level[i]);
            // judged at leads of 6, 12, 18 and 24 hours, on what the past already shows
            if (t < DAY || t % 5 != 0 || t + DAY >= f.ends[o]) continue;
            for (std::size_t i = 0; i < LEVELS.size(); ++i)
                for (std::int64_t lead = 6; lead <= DAY; lead += 6) loss[i] += std::abs(f.x[t + lead] - level[i]);
        }
        const auto best = std::min_element(loss.begin(), loss.end()) - loss.begin();
        std::ranges::fill(f.row(o), level[best]);
    }
    return true;
}

}  // extern "C"

}  // namespace tidegrid::realtime
