// Small helpers on series that the demand kernels share.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "native.hpp"

namespace tidegrid::realtime {

using Series = std::span<const double>;

inline constexpr std::int64_t DAY = 24;
inline constexpr std::int64_t WEEK = 168;

inline double mean(Series x) {
    double sum = 0.0;
    for (double value : x) sum += value;
    return sum / static_cast<double>(x.size());
}

// Reorders `x`.
inline double median(std::span<double> x) {
    const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
    std::nth_element(x.begin(), middle, x.end());
    if (x.size() % 2 == 1) return *middle;
    return 0.5 * (*std::max_element(x.begin(), middle) + *middle);
}

// Forecasts of one member: `ends.size` rows, one for each origin, of as many leads as `out` has room for.
struct Forecasts {
    Series x;
    std::span<const std::int64_t> ends;
    std::span<double> out;
    std::int64_t horizon = 0;

    Forecasts(Array<const double> x_, Array<const std::int64_t> ends_, Array<double> out_)
        : x(x_), ends(ends_), out(out_) {
        if (!ends.empty()) horizon = static_cast<std::int64_t>(out.size() / ends.size());
    }

    // Origins must ascend and lie within the series, and each have a row.
    bool fit() const {
        if (out.size() != ends.size() * static_cast<std::size_t>(horizon)) return false;
        std::int64_t before = 1;
        for (std::int64_t end : ends) {
            if (end < before) return false;
            before = end;
        }
        return before <= static_cast<std::int64_t>(x.size());
    }

    std::span<double> row(std::size_t origin) const {
        return out.subspan(origin * static_cast<std::size_t>(horizon), static_cast<std::size_t>(horizon));
    }
};

}  // namespace tidegrid::realtime
