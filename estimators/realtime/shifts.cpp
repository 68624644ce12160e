// Level shifts and odd days in daily log sums.

#include "series.hpp"

namespace tidegrid::realtime {
namespace {

constexpr std::int64_t WEEK_DAYS = 7;

double median_of_sizes(std::vector<double> x) {
    for (double& value : x) value = std::abs(value);
    return median(x);
}

}  // namespace

extern "C" {

// Thresholds of `tidegrid.estimators.realtime.shifts`, which says what each means.
struct ShiftRules {
    std::int64_t least_before, least_after, look_back;
    double least_change, steadiness, held;
};

// Return the first day of the clearest lasting change, 0 without one, and write the change (a log ratio).
[[gnu::visibility("default")]] std::int64_t tg_clearest_shift(Array<const double> logs, const ShiftRules* rules,
                                                              Array<double> change_out) {
    const Series x = logs;
    const auto days = static_cast<std::int64_t>(x.size());
    double best = 0.0;
    std::int64_t found = 0;
    std::vector<double> same, off;
    const std::int64_t from = std::max(rules->least_before, days - rules->look_back);
    for (std::int64_t day = from; day <= days - rules->least_after; ++day) {
        const std::int64_t first = std::max<std::int64_t>(0, day - rules->look_back);
        off.assign(static_cast<std::size_t>(days - first), 0.0);
        for (std::int64_t w = 0; w < WEEK_DAYS; ++w) {
            same.clear();
            for (std::int64_t t = first + w; t < day; t += WEEK_DAYS) same.push_back(x[t]);
            const double usual = median(same);
            for (std::int64_t t = first + w; t < days; t += WEEK_DAYS) off[t - first] = x[t] - usual;
        }
        const std::vector<double> before(off.begin(), off.begin() + (day - first));
        std::vector<double> after(off.begin() + (day - first), off.end());
        const double noise = 1.4826 * median_of_sizes(before) + 0.02;
        const double lasting = *std::ranges::min_element(after), highest = *std::ranges::max_element(after);
        const double count = static_cast<double>(after.size());
        const double change = median(after);
        const double size = std::abs(change);
        if (size <= std::max(rules->least_change, rules->steadiness * noise)) continue;
        const bool steady = change > 0.0 ? lasting >= rules->held * size : -highest >= rules->held * size;
        // the last day before must still have been at the old level, or the change began earlier
        const bool fresh = std::abs(before.back()) < (1.0 - rules->held) * size;
        const double clear = size * std::sqrt(count) / noise;
        if (!steady || !fresh || clear <= best) continue;
        best = clear;
        found = day;
        if (change_out.size > 0) change_out.data[0] = change;
    }
    return found;
}

// Write by how much each day's log sum differs from the median of the same weekday within `look_back` days.
[[gnu::visibility("default")]] bool tg_off_weekday(Array<const double> logs, std::int64_t look_back,
                                                   Array<double> off) {
    const Series x = logs;
    const auto days = static_cast<std::int64_t>(x.size());
    if (off.size != days) return false;
    std::vector<double> others;
    for (std::int64_t day = 0; day < days; ++day) {
        others.clear();
        for (std::int64_t at = day % WEEK_DAYS; at < days; at += WEEK_DAYS)
            if (at != day && std::abs(at - day) <= look_back) others.push_back(x[at]);
        off.data[day] = others.empty() ? 0.0 : x[day] - median(others);
    }
    return true;
}

}  // extern "C"

}  // namespace tidegrid::realtime
