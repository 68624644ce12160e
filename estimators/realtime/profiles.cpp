// Members that repeat the past: seasonal repeats, the weekly curve × level, and analogues.

#include "series.hpp"

namespace tidegrid::realtime {
namespace {

double mean_between(Series x, std::int64_t from, std::int64_t to) {
    return mean(x.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from)));
}

struct Window {
    double distance, level;
    std::int64_t start;
};

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

// Median of the same hour in the last `cycles` periods (days or weeks), each moved to today's level.
//
// The level is the mean of the `span` hours before the origin and before the same time in each past period; with a span
// of 0 the hours are taken as they were.
[[gnu::visibility("default")]] bool tg_seasonal_curve(Array<const double> x, Array<const std::int64_t> ends,
                                                      std::int64_t period, std::int64_t cycles, std::int64_t span,
                                                      Array<double> out) {
    const Forecasts f(x, ends, out);
    if (!f.fit() || period < 1 || cycles < 1 || span < 0) return false;
    std::vector<double> past, moved;
    for (std::size_t o = 0; o < f.ends.size(); ++o) {
        const std::int64_t end = f.ends[o];
        moved.clear();
        for (std::int64_t c = 1; c <= cycles && end - period * c >= span; ++c) {
            const std::int64_t then = end - period * c;
            moved.push_back(span ? mean_between(f.x, end - span, end) - mean_between(f.x, then - span, then) : 0.0);
        }
        for (std::int64_t k = 0; k < f.horizon; ++k) {
            past.clear();
            for (std::size_t c = 0; c < moved.size(); ++c) {
                const std::int64_t u = end + k - period * (static_cast<std::int64_t>(c) + 1 + k / period);
                if (u < 0) break;
                past.push_back(f.x[u] + moved[c]);
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
    std::vector<double> path(static_cast<std::size_t>(reach));
    std::vector<Window> best;  // the nearest so far, ascending
    for (std::size_t o = 0; o < f.ends.size(); ++o) {
        const std::int64_t end = f.ends[o];
        const std::int64_t last = end - reach - window;
        if (last < 2 * DAY) continue;
        const double now = mean_between(f.x, end - DAY, end);
        best.clear();
        // the latest start at the same hour of day whose window and reach lie before the origin
        const std::int64_t latest = last - ((last - (end - window)) % DAY + DAY) % DAY;
        for (std::int64_t a = latest; a >= 0; a -= DAY) {
            const double level = mean_between(f.x, a + window - DAY, a + window);
            const bool full = static_cast<std::int64_t>(best.size()) == nearest;
            double distance = 0.0;
            for (std::int64_t i = window; i-- > 0 && !(full && distance >= best.back().distance);) {
                const double gap = std::abs((f.x[a + i] - level) - (f.x[end - window + i] - now));
                distance += gap * (0.5 + static_cast<double>(i) / static_cast<double>(window));
            }
            if (full && distance >= best.back().distance) continue;
            if (full) best.pop_back();
            const auto at = std::ranges::upper_bound(best, distance, {}, &Window::distance);
            best.insert(at, {distance, level, a});
        }
        std::ranges::fill(path, 0.0);
        double mass = 0.0;
        for (const Window& one : best) {
            const double weight = 1.0 / (one.distance + 1e-9 * static_cast<double>(window));
            mass += weight;
            for (std::int64_t k = 0; k < reach; ++k) path[k] += weight * (f.x[one.start + window + k] - one.level);
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
