// The last step: no job waits for GPUs that are free earlier.

#include <cmath>
#include <numeric>

#include "state.hpp"

namespace tidegrid::fast {

namespace {

constexpr double kRounding = 1e-12;

// Whether a pool has GPUs for one more step before a job's start, so that an earlier one may be possible.
bool may_move(const Board& b, const State& s, Int p, Int gpus, Int from, Int start) {
    for (Int t = from; t < start; ++t)
        if (s.used[p * b.width + t] + gpus <= b.pool[p].gpus) return true;
    return false;
}

// What a job earns from a start, less what it takes from apps: those whose GPUs are named keep them.
double gain_at(const Board& b, const State& s, const Shape& shape, Int start) {
    const Int p = shape.pool;
    double gain = b.worth(shape, start);
    for (Int t = b.pool[p].named ? std::max(start, b.steps) : start; t < std::min(start + shape.steps, b.width); ++t) {
        if (b.wanted_at(p, t) == 0) continue;
        const Int used = s.used[p * b.width + t];
        gain -= short_cost(b, p, t, used + shape.gpus) - short_cost(b, p, t, used);
    }
    return gain;
}

bool move_earlier(const Board& b, State& s, Int j) {
    const Spot old = s.spot[j];
    const Shape& shape = b.shape[old.shape];
    const Int from = ready(b, s, j);
    if (from >= old.start || shape.rate <= 0.0 || !may_move(b, s, shape.pool, shape.gpus, from, old.start)) return false;
    const Pieces pieces = s.pieces[j];
    lift(b, s, j);
    // With the same shape an earlier start ends earlier too: nothing that waits for the end is disturbed.
    const Place best = look(b, s, old.shape, from, old.start - 1);
    const double now = gain_at(b, s, shape, old.start);
    const bool found = best.spot.shape >= 0 && best.gain > now + kRounding * std::abs(now);
    if (found)
        put(b, s, j, best.spot, best.pieces);
    else
        put(b, s, j, old, pieces);
    return found;
}

}  // namespace

void shift_left(const Board& b, State& s) {
    s.heed = Heed::apart;
    std::vector<Int> order(b.job.size());
    std::iota(order.begin(), order.end(), 0);
    for (bool again = true; again;) {
        again = false;
        std::stable_sort(order.begin(), order.end(), [&](Int i, Int j) { return s.spot[i].start < s.spot[j].start; });
        for (Int j : order)
            if (s.spot[j].shape >= 0) again |= move_earlier(b, s, j);
        for (Int j : order)
            if (s.spot[j].shape < 0 && ready(b, s, j) < b.steps) again |= insert(b, s, j, 0.0, 0.0, 0, b.steps);
    }
}

}  // namespace tidegrid::fast
