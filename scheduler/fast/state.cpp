#include "state.hpp"

#include <numeric>

namespace tidegrid::fast {

State::State(const Board& b, Int seed) {
    const Int jobs = Int(b.job.size()), apps = Int(b.app.size()), pools = Int(b.pool.size());
    free = b.base;
    used = b.base_used;
    load = b.base_load;
    spot.resize(jobs);
    pieces.resize(jobs);
    best_pieces.resize(jobs);
    seats = b.seats;
    held_seats.assign(seats.size(), 0);
    trial_seats.assign(seats.size(), 0);
    Int most_bins = 0;
    for (const Pool& pool : b.pool) most_bins = std::max(most_bins, pool.bins);
    least.resize(b.steps * most_bins);
    row.resize(most_bins);
    pool_cost.assign(pools, 0.0);
    random.x = Word(seed) * 2654435761u + 88172645463325252u;
    if (random.x == 0) random.x = 1;
    window.resize(b.steps * b.most_words);
    hit.resize(b.most_words);
    sums.resize(b.width + 1);
    shut.resize(b.steps + 1);
    room.resize(b.steps);
    open.resize(b.steps);
    most.resize(b.steps);
    line.resize(b.steps);
    best.resize(jobs);
    area.assign(jobs, 0.0);
    size.assign(jobs, 0.0);
    count.resize(apps * b.steps);
    reserve.assign(apps * b.steps, 0);
    hold_count.resize(apps);
    left.resize(apps);
    turn.resize(apps);
    std::iota(turn.begin(), turn.end(), 0);
    best_turn = turn;
    ceiling.assign(apps * b.steps, kNoLimit);
    best_ceiling = old_ceiling = ceiling;
    hold.resize(apps * b.most_words);
    run.resize(b.most_words);
    gone.resize(b.most_words);
    cells.assign(b.base.size(), 0);
    trial.assign(b.base.size(), 0);
    kept.assign(pools * b.steps, 0);
    named.assign(pools, 0.0);
    named_trial.assign(pools, 0.0);
    for (Int j = 0; j < jobs; ++j)
        for (Int k = b.job[j].shape_first; k < b.job[j].shape_last; ++k) {
            area[j] = std::max(area[j], double(b.shape[k].gpus * b.shape[k].steps));
            size[j] = std::max(size[j], double(b.shape[k].gpus));
        }
}

namespace {

void add_load(const Board& b, State& s, const Shape& shape, Int start, Int sign) {
    for (Int l = shape.limit_first; l < shape.limit_last; ++l)
        for (Int t = start; t < std::min(start + shape.steps, b.steps); ++t)
            s.load[b.limit[l].at * b.steps + t] += sign * b.limit[l].weigh;
}

}  // namespace

void put(const Board& b, State& s, Int j, Spot spot, const Pieces& pieces) {
    const Shape& shape = b.shape[spot.shape];
    const Pool& pool = b.pool[shape.pool];
    const Int end = spot.start + shape.steps, inside = std::min(end, b.steps);
    if (pool.by_node) {
        s.pieces[j] = pieces;
        for (const Piece& piece : pieces)
            for (Int t = spot.start; t < inside; ++t) {
                const Int at = pool.seat + t * pool.bins + piece.bin;
                s.seats[at] = Seats(s.seats[at] - piece.gpus);
                s.disturbed |= s.seats[at] < s.held_seats[at];
            }
    } else
        for (Int k = spot.first >> 6; k <= (spot.first + shape.gpus - 1) >> 6; ++k) {
        const Word bits = span(k, spot.first, shape.gpus);
        Word taken = 0;
        for (Int t = spot.start; t < inside; ++t) {
            s.free[pool.row + t * pool.words + k] &= ~bits;
            taken |= s.cells[pool.row + t * pool.words + k];
        }
        if (taken & bits) s.disturbed = true;
    }
    for (Int t = spot.start; t < std::min(end, b.width); ++t) s.used[shape.pool * b.width + t] += shape.gpus;
    add_load(b, s, shape, spot.start, 1);
    s.spot[j] = spot;
    s.reward += b.worth(shape, spot.start);
}

void lift(const Board& b, State& s, Int j) {
    const Spot spot = s.spot[j];
    const Shape& shape = b.shape[spot.shape];
    const Pool& pool = b.pool[shape.pool];
    const Int end = spot.start + shape.steps, inside = std::min(end, b.steps);
    if (pool.by_node)
        for (const Piece& piece : s.pieces[j])
            for (Int t = spot.start; t < inside; ++t) {
                const Int at = pool.seat + t * pool.bins + piece.bin;
                s.seats[at] = Seats(s.seats[at] + piece.gpus);
            }
    else
        for (Int k = spot.first >> 6; k <= (spot.first + shape.gpus - 1) >> 6; ++k) {
        const Word bits = span(k, spot.first, shape.gpus);
        for (Int t = spot.start; t < inside; ++t) s.free[pool.row + t * pool.words + k] |= bits;
    }
    for (Int t = spot.start; t < std::min(end, b.width); ++t) s.used[shape.pool * b.width + t] -= shape.gpus;
    add_load(b, s, shape, spot.start, -1);
    s.spot[j].shape = -1;
    s.reward -= b.worth(shape, spot.start);
}

void clear(const Board& b, State& s) {
    s.free = b.base;
    s.used = b.base_used;
    s.load = b.base_load;
    s.seats = b.seats;
    for (Spot& spot : s.spot) spot.shape = -1;
    s.reward = 0.0;
}

void record(State& s) {
    s.best = s.spot;
    s.best_pieces = s.pieces;
    s.best_turn = s.turn;
    s.best_ceiling = s.ceiling;
}

void restore(const Board& b, State& s, const std::vector<Spot>& spots, const std::vector<Pieces>& pieces) {
    clear(b, s);
    s.turn = s.best_turn;
    s.ceiling = s.best_ceiling;
    for (Int j = 0; j < Int(s.spot.size()); ++j)
        if (spots[j].shape >= 0) put(b, s, j, spots[j], pieces.empty() ? Pieces{} : pieces[j]);
}

Int ready(const Board& b, const State& s, Int j) {
    Int first = std::max(b.job[j].earliest, b.ready[j]);
    for (Int other : b.before_job[j]) {
        const Spot& spot = s.spot[other];
        if (spot.shape < 0) return kNoLimit;
        first = std::max(first, spot.start + b.shape[spot.shape].steps);
    }
    return first;
}

bool count_shut(const Board& b, State& s, const Shape& shape) {
    if (shape.limit_first == shape.limit_last) return false;
    s.shut[0] = 0;
    for (Int t = 0; t < b.steps; ++t) {
        bool over = false;
        for (Int l = shape.limit_first; l < shape.limit_last; ++l)
            over |= s.load[b.limit[l].at * b.steps + t] + b.limit[l].weigh > b.limit_most[b.limit[l].at];
        s.shut[t + 1] = s.shut[t] + over;
    }
    return true;
}

bool within_limits(const Board& b, const State& s, const Shape& shape, Int start) {
    for (Int l = shape.limit_first; l < shape.limit_last; ++l)
        for (Int t = start; t < std::min(start + shape.steps, b.steps); ++t)
            if (s.load[b.limit[l].at * b.steps + t] + b.limit[l].weigh > b.limit_most[b.limit[l].at]) return false;
    return true;
}

double contact(const Board& b, const State& s, Int p, Int size, Int start, Int length, Int first) {
    const Pool& pool = b.pool[p];
    const Word* free = s.free.data() + pool.row;
    const Int end = std::min(start + length, b.steps);
    Int touched = 0;
    for (const Int beside : {first - 1, first + size}) {
        if (beside < 0 || beside == pool.gpus) {
            touched += end - start;
            continue;
        }
        for (Int t = start; t < end; ++t) touched += !has(free + t * pool.words, beside);
    }
    for (Int k = first >> 6; k <= (first + size - 1) >> 6; ++k) {
        const Word bits = span(k, first, size);
        touched += ones(start == 0 ? bits : bits & ~free[(start - 1) * pool.words + k]);
        touched += ones(end == b.steps ? bits : bits & ~free[end * pool.words + k]);
    }
    return double(touched) / (2.0 * double(end - start) + 2.0 * double(size));
}

namespace {

// Choose how many GPUs an app holds in each step from the room left; what its shortfall costs.
double follow(const Board& b, State& s, Int a) {
    const Int steps = b.steps;
    const App& app = b.app[a];
    const Int cap = app.cap, unit = app.replica;
    const Int* ceiling = s.ceiling.data() + a * steps;
    Int* count = s.count.data() + a * steps;
    Int* room = s.room.data();
    Int* most = s.most.data();
    Int before = app.held_count;
    for (Int t = 0; t < steps; ++t) {
        const Int kept = std::max<Int>(0, app.held_count - cap * (t + 1));
        room[t] += kept + s.reserve[a * steps + t];
        before = std::max<Int>(0, std::min({room[t], std::max(kept, ceiling[t]), before + std::min(cap, s.open[t])}));
        if (unit > 1) before -= before % unit;
        most[t] = before;
    }
    double total = 0.0;
    Int above = kNoLimit, need = 0;
    for (Int t = steps - 1; t >= 0; --t) {
        if (most[t] > above) most[t] = above;
        above = most[t] + cap;
        Int wanted = b.demand_of(a)[t];
        if (wanted > most[t]) {
            total += app_cost(b, a, t, most[t]);
            wanted = most[t];
        }
        if (unit > 1) wanted = (wanted + unit - 1) / unit * unit;
        need = std::max(wanted, need - (t + 1 < steps ? std::min(cap, s.open[t + 1]) : cap));
        count[t] = need;
    }
    before = app.held_count;
    for (Int t = 0; t < steps; ++t) {
        count[t] = std::max(count[t], before - cap);
        if (app.swap_price > 0.0 && count[t] > before) total += app.swap_price * b.weight[t] * double(count[t] - before);
        before = count[t];
        room[t] -= before;
    }
    return total;
}

// Count in `s.open` the GPUs of a pool that an app may enter in each step: free of jobs, and not closed.
void count_open(const Board& b, State& s, Int p) {
    const Pool& pool = b.pool[p];
    if (!pool.drains) {
        std::fill(s.open.begin(), s.open.end(), pool.gpus);
        return;
    }
    for (Int t = 0; t < b.steps; ++t) {
        s.open[t] = 0;
        if (pool.by_node) {
            const Int at = pool.seat + t * pool.bins;
            for (Int i = at; i < at + pool.bins; ++i) s.open[t] += b.seats_enter[i] ? s.seats[i] : 0;
        } else {
            const Word *free = s.free.data() + pool.row + t * pool.words, *enter = b.enter_at(p, t);
            for (Int k = 0; k < pool.words; ++k) s.open[t] += ones(free[k] & enter[k]);
        }
    }
}

// Keep room for every app's floor while others choose.
void reserve_floors(const Board& b, State& s, const Pool& pool) {
    for (Int i = pool.app_first; i < pool.app_last; ++i) {
        const Int a = s.turn[i];
        const App& app = b.app[a];
        for (Int t = 0; t < b.steps; ++t) {
            const Int kept = std::max<Int>(0, app.held_count - app.cap * (t + 1));
            const Int floor = (b.floor_of(a)[t] + app.replica - 1) / app.replica * app.replica;
            Int& reserve = s.reserve[a * b.steps + t];
            reserve = std::clamp<Int>(floor - kept, 0, std::max<Int>(0, s.room[t]));
            s.room[t] -= reserve;
        }
    }
}

}  // namespace

// Each app, highest priority first, gets the largest count that its cap allows: the upper Lipschitz envelope of
// the room that is left; then no more of it is kept than what is served needs.
double count_apps(const Board& b, State& s, Int p, Int start, Int end, Int size) {
    const Pool& pool = b.pool[p];
    for (Int t = 0; t < b.steps; ++t)
        s.room[t] = pool.gpus - s.used[p * b.width + t] - (start <= t && t < end ? size : 0);
    for (Int a = pool.app_first; a < pool.app_last; ++a)
        for (Int t = 0; t < b.steps; ++t) {
            const Int kept = b.app[a].held_count - b.app[a].cap * (t + 1);
            if (kept <= 0) break;
            s.room[t] -= kept;
        }
    if (pool.floors) reserve_floors(b, s, pool);
    count_open(b, s, p);
    double total = 0.0;
    for (Int i = pool.app_first; i < pool.app_last; ++i) total += follow(b, s, s.turn[i]);
    return total;
}

// Without caps each step stands alone, and so does each step past the horizon.
double pool_penalty(const Board& b, State& s, Int p, Int start, Int end, Int size) {
    const Pool& pool = b.pool[p];
    double total = 0.0;
    for (Int t = pool.named ? b.steps : 0; t < b.width; ++t) {
        if (b.wanted_at(p, t) == 0) continue;
        total += short_cost(b, p, t, s.used[p * b.width + t] + (start <= t && t < end ? size : 0));
    }
    if (pool.named) total += count_apps(b, s, p, start, end, size);
    return total;
}

}  // namespace tidegrid::fast
