// How apps whose GPUs are named share a pool: who chooses first, and ceilings for those that choose before others.

#include "state.hpp"

namespace tidegrid::fast {

namespace {

constexpr double kLift = 0.3;  // chance that a trial takes an app's ceilings away
constexpr Int kMostLong = 3;   // steps of a ceiling

}  // namespace

// Let neighbours from `first` to `last` choose in the other order where it costs less; what that saves.
double swap_turns(const Board& b, State& s, Int p, Int first, Int last) {
    double saved = 0.0;
    double before = full_penalty(b, s, p);
    adopt(b, s, p);
    for (Int i = first; i < last; ++i) {
        std::swap(s.turn[i], s.turn[i + 1]);
        const double after = full_penalty(b, s, p);
        if (after < before) {
            saved += before - after;
            before = after;
            adopt(b, s, p);
        } else {
            std::swap(s.turn[i], s.turn[i + 1]);
        }
    }
    return saved;
}

// Try ceilings on what an app holds where another is short; what the pool's shortfall then costs less.
//
// In whatever order apps choose, the first takes all it wants in every step. With a cap the cheapest way may be
// that it holds less before a peak of another's, and so gives way in time.
double bend(const Board& b, State& s, Int p, Int tries) {
    const Int steps = b.steps, first = b.pool[p].app_first, apps = b.pool[p].app_last - first;
    if (apps < 2) return 0.0;
    double cost = pool_penalty(b, s, p);
    if (cost <= 0.0) return 0.0;
    const double began = cost, named = full_penalty(b, s, p);
    adopt(b, s, p);
    const auto mine = [&](std::vector<Int>& v) { return v.begin() + first * steps; };
    std::copy_n(mine(s.ceiling), apps * steps, mine(s.old_ceiling));
    for (Int i = 0; i < tries; ++i) {
        const Int a = first + s.random.below(apps);
        Int low = 0, high = steps, level = kNoLimit;
        if (s.random.uniform() >= kLift) {
            low = s.random.below(steps);
            high = std::min(steps, low + 1 + s.random.below(kMostLong));
            Int lacking = 0;
            for (Int other = first; other < first + apps; ++other)
                if (other != a) lacking = std::max(lacking, b.demand_of(other)[low] - s.count[other * steps + low]);
            if (lacking == 0 || s.count[a * steps + low] == 0) continue;
            level = std::max<Int>(0, s.count[a * steps + low] - 1 - s.random.below(lacking));
        }
        Int* ceiling = s.ceiling.data() + a * steps;
        for (Int t = low; t < high; ++t) {
            s.line[t] = ceiling[t];
            ceiling[t] = level == kNoLimit ? level : std::min(level, ceiling[t]);
        }
        const double after = pool_penalty(b, s, p);
        if (after < cost || (level == kNoLimit && after <= cost)) {
            cost = after;
            continue;
        }
        std::copy(s.line.begin() + low, s.line.begin() + high, ceiling + low);
        pool_penalty(b, s, p);
    }
    if (cost == began) return 0.0;
    const double saved = named - full_penalty(b, s, p);
    if (saved > 0.0) {
        adopt(b, s, p);
        return saved;
    }
    std::copy_n(mine(s.old_ceiling), apps * steps, mine(s.ceiling));
    return 0.0;
}

}  // namespace tidegrid::fast
