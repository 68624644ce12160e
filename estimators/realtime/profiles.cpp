// Members that repeat the past: seasonal repeats, the weekly curve × level, and analogues.

#include <numeric>

#include "series.hpp"

namespace tidegrid::realtime {
namespace {

double mean_between(Series x, std::int64_t from, std::int64_t to) {
    return mean(x.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from)));
}

}  // namespace

extern "C" {

// Repeat the last `period` hours again and again.
[[gnu::visibility("default")]] bool tg_seasonal_repeat(Array<const double> x, Array<const std::int64_t> ends,
                                                       std::int64_t period, Array<double> out) {
    const Forecasts f(x, ends, out);
    if (!f.fit() || period < 1) return false;
    for (std::size_t o = 0; o < f.ends.size(); ++o)
        for (std::int64_t k = 0; k < f.horizon; ++k) {
            const std::int64_t u = f.ends[o] + k % period - period;
            if (u >= 0) f.row(o)[k] = f.x[u];
        }
    return true;
}

// Median of the same hour in the last `weeks` weeks, each week moved to today's level.
//
// The level is the mean of the `span` hours before the origin and before the same time in each past week; with a span
// of 0 the hours are taken as they were.
[[gnu::visibility("default")]] bool tg_weekly_curve(Array<const double> x, Array<const std::int64_t> ends,
                                                    std::int64_t weeks, std::int64_t span, Array<double> out) {
    const Forecasts f(x, ends, out);
    if (!f.fit() || weeks < 1 || span < 0) return false;
    std::vector<double> past, moved;
    for (std::size_t o = 0; o < f.ends.size(); ++o) {
        const std::int64_t end = f.ends[o];
        moved.clear();
        for (std::int64_t w = 1; w <= weeks && end - WEEK * w >= span; ++w) {
            const std::int64_t then = end - WEEK * w;
            moved.push_back(span ? mean_between(f.x, std::max<std::int64_t>(0, end - span), end) -
                                       mean_between(f.x, then - span, then)
                                 : 0.0);
        }
        for (std::int64_t k = 0; k < f.horizon; ++k) {
            past.clear();
            for (std::size_t w = 0; w < moved.size(); ++w) {
                const std::int64_t u = end + k - WEEK * (static_cast<std::int64_t>(w) + 1 + k / WEEK);
                if (u < 0) break;
                past.push_back(f.x[u] + moved[w]);
            }
            if (!past.empty()) f.row(o)[k] = median(past);
        }
    }
    return true;
}

// Average what followed the past days most like the last `window` hours.
//
// Windows are compared at the same hour of day only, each after taking off the mean of its last day, by absolute
// distance in which recent hours count up to three times as much as early ones. The `nearest` are averaged with weights
// of one over their distance and moved to today's level. An origin whose past holds fewer than two windows is left as
// it is. Leads past `reach` (at least a day) repeat the forecast's last day.
[[gnu::visibility("default")]] bool tg_analogues(Array<const double> x, Array<const std::int64_t> ends,
                                                 std::int64_t window, std::int64_t nearest, std::int64_t reach,
                                                 Array<double> out) {
    const Forecasts f(x, ends, out);
    if (!f.fit() || window < DAY || nearest < 1 || reach < DAY) return false;
    std::vector<double> distance, path(static_cast<std::size_t>(reach));
    std::vector<std::int64_t> starts, order;
    for (std::size_t o = 0; o < f.ends.size(); ++o) {
        const std::int64_t end = f.ends[o];
        const std::int64_t last = end - reach - window;
        if (last < 2 * DAY) continue;
        const double now = mean_between(f.x, end - DAY, end);
        starts.clear();
        distance.clear();
        // the latest start at the same hour of day whose window and reach lie before the origin
        const std::int64_t latest = last - ((last - (end - window)) % DAY + DAY) % DAY;
        for (std::int64_t a = latest; a >= 0; a -= DAY) {
            const double then = mean_between(f.x, a + window - DAY, a + window);
            double total = 0.0;
            for (std::int64_t i = 0; i < window; ++i) {
                const double gap = std::abs((f.x[a + i] - then) - (f.x[end - window + i] - now));
                total += gap * (0.5 + static_cast<double>(i) / static_cast<double>(window));
            }
            starts.push_back(a);
            distance.push_back(total);
        }
        order.resize(starts.size());
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(order, {}, [&](std::int64_t c) { return distance[c]; });
        if (static_cast<std::int64_t>(order.size()) > nearest) order.resize(static_cast<std::size_t>(nearest));
        std::ranges::fill(path, 0.0);
        double mass = 0.0;
        for (std::int64_t c : order) {
            const std::int64_t a = starts[c];
            const double weight = 1.0 / (distance[c] + 1e-9 * static_cast<double>(window));
            const double then = mean_between(f.x, a + window - DAY, a + window);
            mass += weight;
            for (std::int64_t k = 0; k < reach; ++k) path[k] += weight * (f.x[a + window + k] - then);
        }
        if (mass == 0.0) continue;
        for (std::int64_t k = 0; k < f.horizon; ++k) {
            const std::int64_t j = k < reach ? k : reach - DAY + (k - reach) % DAY;
            f.row(o)[k] = path[j] / mass + now;
        }
    }
    return true;
}

}  // extern "C"

}  // namespace tidegrid::realtime
