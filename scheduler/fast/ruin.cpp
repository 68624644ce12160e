// What a round takes off the board: jobs near each other, any jobs, or those in a waiting job's place.

#include "state.hpp"

namespace tidegrid::fast {

namespace {

struct Area {
    Int pool, start, end, first, last;  // steps, and GPUs or bins, ends exclusive
};

bool meets(const Board& b, const State& s, Int j, const Area& area) {
    const Spot& spot = s.spot[j];
    if (spot.shape < 0) return false;
    const Shape& shape = b.shape[spot.shape];
    if (shape.pool != area.pool || spot.start >= area.end || area.start >= spot.start + shape.steps) return false;
    if (!b.pool[area.pool].by_node) return spot.first < area.last && area.first < spot.first + shape.gpus;
    return std::any_of(s.pieces[j].begin(), s.pieces[j].end(),
                       [&](const Piece& piece) { return area.first <= piece.bin && piece.bin < area.last; });
}

// Whether nothing that cannot move lies in a rectangle.
bool base_allows(const Board& b, const Area& area) {
    const Pool& pool = b.pool[area.pool];
    const Int size = area.last - area.first;
    for (Int k = area.first >> 6; k <= (area.last - 1) >> 6; ++k) {
        const Word bits = span(k, area.first, size);
        for (Int t = area.start; t < std::min(area.end, b.steps); ++t)
            if ((b.base[pool.row + t * pool.words + k] & bits) != bits) return false;
    }
    return true;
}

// Lift a placed job, and those that wait for its end, and note where they were.
void take_off(const Board& b, State& s, Int j) {
    s.log.push_back({j, s.spot[j], s.pieces[j]});
    lift(b, s, j);
    for (Int other : b.after_job[j])
        if (s.spot[other].shape >= 0) take_off(b, s, other);
}

// A start next to another job's, or any.
Int any_start(const Board& b, State& s, const Shape& shape, Int earliest) {
    Int start = earliest + s.random.below(shape.latest - earliest + 1);
    const Spot& other = s.spot[s.random.below(Int(s.spot.size()))];
    if (other.shape >= 0 && b.shape[other.shape].pool == shape.pool) {
        start = other.start;
        if (s.random.uniform() < 0.5) start += b.shape[other.shape].steps;
        start = std::max(earliest, std::min(start, shape.latest));
    }
    return start;
}

// Put a waiting job on the nodes that need the least taken off.
void eject_on_nodes(const Board& b, State& s, Int j, Spot spot) {
    const Shape& shape = b.shape[spot.shape];
    std::vector<Int> displaced;
    if (!make_room(b, s, shape, spot.start, displaced)) return;
    for (Int m : displaced)
        if (s.spot[m].shape >= 0) take_off(b, s, m);
    Pieces pieces;
    if (ready(b, s, j) > spot.start || !within_limits(b, s, shape, spot.start)) return;
    if (!find_pieces(b, s, shape, spot.start, pieces)) return;
    put(b, s, j, spot, pieces);
    if (b.pool[shape.pool].named && !evicts_in_time(b, s, j))
        lift(b, s, j);
    else
        s.log.push_back({j, Spot{}, {}});
}

}  // namespace

// Take off a random placed job and those that meet a rectangle around it.
void ruin_near(const Board& b, State& s, Int most, Int reach) {
    const Int n = Int(b.job.size());
    Int seed = s.random.below(n);
    for (Int i = 0; i < n && s.spot[seed].shape < 0; ++i) seed = seed + 1 < n ? seed + 1 : 0;
    const Spot spot = s.spot[seed];
    if (spot.shape < 0) return;
    const Shape& shape = b.shape[spot.shape];
    const Int wide = s.random.below(shape.gpus + reach);
    const Int around = s.random.below(2 + reach + shape.steps / 2);
    Area area{shape.pool, spot.start - around, spot.start + shape.steps + around, spot.first - wide,
              spot.first + shape.gpus + wide};
    if (const Pool& pool = b.pool[shape.pool]; pool.by_node) {
        const Int bin = s.pieces[seed][s.random.below(Int(s.pieces[seed].size()))].bin;
        const Int more = wide * pool.bins / pool.gpus;
        area.first = bin - more;
        area.last = bin + more + 1;
    }
    take_off(b, s, seed);
    Int at = s.random.below(n);
    for (Int i = 0; i < n && Int(s.log.size()) < most; ++i) {
        at = at + 1 < n ? at + 1 : 0;
        if (meets(b, s, at, area)) take_off(b, s, at);
    }
}

// Take off random placed jobs.
void ruin_any(const Board& b, State& s, Int most) {
    for (Int i = 0; i < 2 * most && Int(s.log.size()) < most; ++i)
        if (const Int j = s.random.below(Int(b.job.size())); s.spot[j].shape >= 0) take_off(b, s, j);
}

// Put a waiting job where it earns most over what it displaces.
//
// With probability `chain` what comes later on the same GPUs is taken off too, so that a whole line can move up.
void eject(const Board& b, State& s, Int j, const Settings& settings) {
    const Job& job = b.job[j];
    const Int n = Int(b.job.size()), shapes = job.shape_last - job.shape_first;
    const Int earliest = ready(b, s, j);
    double best = -kInfinity;
    Spot chosen;
    for (Int i = 0; i < (shapes > 0 ? settings.places : 0); ++i) {
        const Int at = job.shape_first + s.random.below(shapes);
        const Shape& shape = b.shape[at];
        if (earliest > shape.latest) continue;
        const Pool& pool = b.pool[shape.pool];
        if (pool.by_node) {
            const Int start = any_start(b, s, shape, earliest);
            if (const double gain = s.random.uniform() * b.worth(shape, start); gain > best) {
                best = gain;
                chosen = {at, start, 0};
            }
            continue;
        }
        Int start = earliest + s.random.below(shape.latest - earliest + 1);
        Int first = s.random.below(pool.gpus - shape.gpus + 1);
        const Spot& other = s.spot[s.random.below(n)];
        if (other.shape >= 0 && b.shape[other.shape].pool == shape.pool) {  // an edge is a better guess than any place
            first = other.first;
            if (s.random.uniform() < 0.5) first += b.shape[other.shape].gpus - shape.gpus;
            first = std::max<Int>(0, std::min(first, pool.gpus - shape.gpus));
            start = other.start;
            if (s.random.uniform() < 0.5) start += b.shape[other.shape].steps;
            start = std::max(earliest, std::min(start, shape.latest));
        }
        const Area area{shape.pool, start, start + shape.steps, first, first + shape.gpus};
        if (!may_start(b, shape, start, first) || !base_allows(b, area)) continue;
        double gain = b.worth(shape, start);
        Int met = 0;
        for (Int m = 0; m < n; ++m) {
            if (!meets(b, s, m, area)) continue;
            gain -= settings.share * b.worth(b.shape[s.spot[m].shape], s.spot[m].start);
            ++met;
        }
        if (gain > best && met < kMostRuined) {
            best = gain;
            chosen = {at, start, first};
        }
    }
    if (chosen.shape < 0) return;
    const Shape& shape = b.shape[chosen.shape];
    if (b.pool[shape.pool].by_node) {
        eject_on_nodes(b, s, j, chosen);
        return;
    }
    Area area{shape.pool, chosen.start, chosen.start + shape.steps, chosen.first, chosen.first + shape.gpus};
    for (Int m = 0; m < n; ++m)
        if (meets(b, s, m, area)) take_off(b, s, m);
    if (s.random.uniform() < settings.chain) {
        area.end = b.steps;
        for (Int m = 0; m < n; ++m)
            if (Int(s.log.size()) < kMostRuined - 1 && meets(b, s, m, area)) take_off(b, s, m);
    }
    // What had to end before this job may have been taken off with the rest.
    if (ready(b, s, j) > chosen.start || !within_limits(b, s, shape, chosen.start)) return;
    if (b.pool[shape.pool].named && !keeps_caps(b, s, shape.pool, chosen.start, chosen.first, shape.gpus)) return;
    put(b, s, j, chosen);
    if (b.pool[shape.pool].singles && !evicts_in_time(b, s, j)) {
        lift(b, s, j);
        return;
    }
    s.log.push_back({j, Spot{}, {}});
}

// Bring every logged job back to where it was.
void undo(const Board& b, State& s) {
    for (const Logged& one : s.log)
        if (s.spot[one.job].shape >= 0) lift(b, s, one.job);
    for (const Logged& one : s.log)
        if (one.was.shape >= 0) put(b, s, one.job, one.was, one.pieces);
}

}  // namespace tidegrid::fast
