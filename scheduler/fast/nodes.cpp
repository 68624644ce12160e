// Pools whose jobs take GPUs of any nodes: what is free is counted by bin and step, GPUs are named in the end.

#include <numeric>

#include "state.hpp"

namespace tidegrid::fast {

namespace {

constexpr Int kManyBins = 128;   // of a pool: beyond, few starts with room are looked at
constexpr Int kMostStarts = 6;
constexpr Int kMostLeft = 63;    // GPUs left on a node that are told apart

bool is_down(const Board& b, const Pool& pool, Int bin, Int t) {
    if (!pool.down) return false;
    return has(b.down.data() + pool.row + t * pool.words, b.bin_gpu[b.bin[pool.bin_first + bin].gpu_first]);
}

// Fill `s.least` with the seats of each bin that stay free for `length` steps, for every start low … high; what lies
// past the horizon is free (the sliding minimum of van Herk, three operations a row).
void slide(const Board& b, State& s, const Pool& pool, Int length, Int low, Int high, bool apart) {
    const Int bins = pool.bins, last = std::min(b.steps, high + length) - 1;
    const Seats *seats = s.seats.data() + pool.seat, *held = s.held_seats.data() + pool.seat;
    Seats *out = s.least.data(), *run = s.row.data();
    const auto take = [=](Int t, bool anew) {
        const Seats *free = seats + t * bins, *gone = held + t * bins;
        for (Int i = 0; i < bins; ++i) {
            const Seats here = apart ? Seats(free[i] - gone[i]) : free[i];
            run[i] = anew ? here : std::min(run[i], here);
        }
    };
    if (low == high) {
        for (Int t = low; t <= last; ++t) take(t, t == low);
        std::copy_n(run, bins, out + low * bins);
        return;
    }
    const Int place_of_last = (last - low) % length;
    Int place = place_of_last;
    for (Int t = last; t >= low; --t) {
        take(t, t == last || place == length - 1);
        if (t <= high) std::copy_n(run, bins, out + t * bins);
        if (--place < 0) place = length - 1;
    }
    place = 0;
    for (Int t = low; t <= last; ++t) {
        take(t, place == 0);
        if (const Int start = t - length + 1; start >= low)
            for (Int i = 0; i < bins; ++i) out[start * bins + i] = std::min(out[start * bins + i], run[i]);
        if (++place == length) place = 0;
    }
    if (last == b.steps - 1)
        for (Int start = std::max(low, b.steps - length + 1); start <= std::min(high, last - place_of_last - 1); ++start)
            for (Int i = 0; i < bins; ++i) out[start * bins + i] = std::min(out[start * bins + i], run[i]);
}

// Close the bins that a shape may not use from a start.
void bar(const Board& b, const Pool& pool, const Shape& shape, Int start, Seats* row) {
    if (!pool.drains && shape.within < 0) return;
    const char* enter = b.seats_enter.data() + pool.seat + start * pool.bins;
    for (Int i = 0; i < pool.bins; ++i) {
        const Bin& bin = b.bin[pool.bin_first + i];
        const bool inside = shape.within < 0 || has(b.within.data() + shape.within, b.bin_gpu[bin.gpu_first]);
        if (!enter[i] || !inside || start + shape.steps > bin.late) row[i] = 0;
    }
}

struct Node {
    Int first, last;  // its bins
};

Node node_at(const Board& b, const Pool& pool, Int n) {
    return {b.node_bin[pool.node_first + n], b.node_bin[pool.node_first + n + 1]};
}

Int sum(const Seats* row, Node node) {
    Int total = 0;
    for (Int i = node.first; i < node.last; ++i) total += row[i];
    return total;
}

// Take `gpus` of a node's bins, of what a row says that each has.
void take(const Seats* row, Node node, Int gpus, Pieces& pieces) {
    for (Int i = node.first; i < node.last && gpus > 0; ++i) {
        const Int many = std::min<Int>(gpus, row[i]);
        if (many > 0) pieces.push_back({i, many});
        gpus -= many;
    }
}

// Choose the tightest nodes with room in a row; how snugly a shape lies there, from 0 to 1, or -1 where there is no room.
double choose(const Board& b, const State& s, const Shape& shape, Int start, const Seats* row, Pieces& pieces) {
    const Pool& pool = b.pool[shape.pool];
    const Int per = shape.gpus / shape.nodes, need = shape.nodes;
    Int many[kMostLeft + 1] = {}, total = 0;
    const bool plain = pool.bins == pool.nodes;
    const auto room = [&](Int n) { return plain ? Int(row[n]) : sum(row, node_at(b, pool, n)); };
    const auto nth = [&](Int i) { return pool.high ? pool.nodes - 1 - i : i; };
    for (Int i = 0; i < pool.nodes && many[0] < need; ++i) {
        const Int left = room(nth(i)) - per;
        if (left < 0) continue;
        ++many[std::min(left, kMostLeft)];
        ++total;
    }
    if (total < need) return -1.0;
    Int level = 0, below = 0;  // nodes with less than `level` left are all taken
    while (below + many[level] < need) below += many[level++];
    Int at_level = need - below;
    const Int end = std::min(start + shape.steps, b.steps);
    const Seats* seats = s.seats.data() + pool.seat;
    Int lost = 0, touched = 0;
    pieces.clear();
    for (Int i = 0, chosen = 0; chosen < need; ++i) {
        const Int n = nth(i), left = room(n) - per;
        if (left < 0 || std::min(left, kMostLeft) > level) continue;
        if (std::min(left, kMostLeft) == level && at_level-- <= 0) continue;
        ++chosen;
        const Node node = node_at(b, pool, n);
        take(row, node, per, pieces);
        lost += left;
        // GPUs that become free just as the job starts, and that something takes just as it ends.
        const auto at = [&](Int t) { return sum(seats + t * pool.bins, node); };
        touched += start == 0 ? per : std::clamp<Int>(at(start) - at(start - 1), 0, per);
        touched += end == b.steps ? per : std::clamp<Int>(at(end - 1) - at(end), 0, per);
    }
    const double length = double(end - start);
    const double beside = 1.0 - double(lost) / double(need * pool.node);
    return (2.0 * length * beside + double(touched)) / (2.0 * length + 2.0 * double(shape.gpus));
}

}  // namespace

void look_on_nodes(const Board& b, State& s, Int k, Int low, Int high, double fit, double blink, Place& best) {
    const Shape& shape = b.shape[k];
    const Int p = shape.pool;
    const Pool& pool = b.pool[p];
    const auto [wanted, apart, exact, limited] = price(b, s, shape, low, high);
    const bool large = pool.bins > kManyBins;
    bool slid = false;
    Int looked = 0;
    Pieces pieces;
    for (Int start = low; start <= high; ++start) {
        const Int inside = std::min(start + shape.steps, b.steps);
        double gain = b.worth(shape, start);
        if (wanted) gain -= s.sums[std::min(start + shape.steps, b.width)] - s.sums[start];
        if (gain * (1.0 + fit) <= best.gain) continue;
        if (limited && s.shut[inside] > s.shut[start]) continue;
        if (blink > 0.0 && s.random.uniform() < blink) continue;
        if (large && looked >= kMostStarts) break;
        bool room = true;
        for (Int t = start; t < inside && room; ++t)
            room = s.used[p * b.width + t] + (apart ? s.kept[p * b.steps + t] : 0) + shape.gpus <= pool.gpus;
        if (!room) continue;
        if (!slid) slide(b, s, pool, shape.steps, start, large ? start : high, apart);
        slid = !large;
        Seats* row = s.least.data() + start * pool.bins;
        bar(b, pool, shape, start, row);
        const double touch = choose(b, s, shape, start, row, pieces);
        if (touch < 0.0) continue;
        ++looked;
        if (gain * (1.0 + fit * touch) <= best.gain) continue;
        if (exact) {
            gain = b.worth(shape, start) - (pool_penalty(b, s, p, start, start + shape.steps, shape.gpus) - s.pool_cost[p]);
            if (gain * (1.0 + fit * touch) <= best.gain) continue;
        }
        best = {gain * (1.0 + fit * touch), {k, start, 0}, pieces};
    }
}

bool find_pieces(const Board& b, State& s, const Shape& shape, Int start, Pieces& pieces) {
    const Pool& pool = b.pool[shape.pool];
    slide(b, s, pool, shape.steps, start, start, false);
    Seats* row = s.least.data() + start * pool.bins;
    bar(b, pool, shape, start, row);
    return choose(b, s, shape, start, row, pieces) >= 0.0;
}

// Choose what to take off so that a shape fits from a start: on the nodes with the most room, the jobs that are worth
// least; false where what cannot move, or more than a round may take off, is in the way.
bool make_room(const Board& b, State& s, const Shape& shape, Int start, std::vector<Int>& taken_off) {
    const Pool& pool = b.pool[shape.pool];
    const Int end = std::min(start + shape.steps, b.steps), per = shape.gpus / shape.nodes;
    std::vector<Seats> fixed(b.seats.begin() + pool.seat + start * pool.bins,
                             b.seats.begin() + pool.seat + (start + 1) * pool.bins);
    for (Int t = start + 1; t < end; ++t)
        for (Int i = 0; i < pool.bins; ++i) fixed[i] = std::min(fixed[i], b.seats[pool.seat + t * pool.bins + i]);
    bar(b, pool, shape, start, fixed.data());
    slide(b, s, pool, shape.steps, start, start, false);
    Seats* row = s.least.data() + start * pool.bins;
    bar(b, pool, shape, start, row);
    std::vector<std::pair<double, Int>> nodes;
    for (Int n = 0; n < pool.nodes; ++n) {
        const Node node = node_at(b, pool, n);
        if (sum(fixed.data(), node) >= per)
            nodes.emplace_back(-double(std::min(per, sum(row, node))) - s.random.uniform() * double(per), n);
    }
    if (Int(nodes.size()) < shape.nodes) return false;
    std::nth_element(nodes.begin(), nodes.begin() + (shape.nodes - 1), nodes.end());
    std::vector<char> wanted(pool.bins, 0);
    for (Int i = 0; i < shape.nodes; ++i) {
        const Node node = node_at(b, pool, nodes[i].second);
        if (sum(row, node) >= per) continue;
        std::fill(wanted.begin() + node.first, wanted.begin() + node.last, 1);
    }
    std::vector<std::pair<double, Int>> there;
    for (Int j = 0; j < Int(s.spot.size()); ++j) {
        const Spot& spot = s.spot[j];
        if (spot.shape < 0) continue;
        const Shape& other = b.shape[spot.shape];
        if (other.pool != shape.pool || spot.start >= end || start >= spot.start + other.steps) continue;
        Int gpus = 0;
        for (const Piece& piece : s.pieces[j]) gpus += wanted[piece.bin] ? piece.gpus : 0;
        if (gpus > 0) there.emplace_back(b.worth(other, spot.start) / double(gpus), j);
    }
    std::sort(there.begin(), there.end());
    for (const auto& [_, j] : there) {
        bool helps = false;
        for (const Piece& piece : s.pieces[j]) {
            if (!wanted[piece.bin]) continue;
            const Node node = node_at(b, pool, b.bin[pool.bin_first + piece.bin].node);
            helps |= sum(row, node) < per;
        }
        if (!helps) continue;
        if (Int(taken_off.size()) >= kMostRuined) return false;
        taken_off.push_back(j);
        for (const Piece& piece : s.pieces[j]) row[piece.bin] = Seats(row[piece.bin] + piece.gpus);
    }
    return true;
}

namespace {

struct Replica {
    Int since, until, held;
    bool freely;  // whether it leaves because GPUs go down, which costs no swap
    Pieces pieces;
};

// The apps of a pool, step by step: each replica knows from the step it enters when jobs, or closed GPUs, take its place.
struct Walk {
    const Board& b;
    State& s;
    const Pool& pool;
    std::vector<std::vector<Replica>> mine;  // by app of the pool
    std::vector<std::vector<Int>> taken;     // by app: how many replicas lose their place in a step, at the price of a swap

    Walk(const Board& board, State& state, const Pool& one)
        : b(board), s(state), pool(one), mine(one.app_last - one.app_first),
          taken(one.app_last - one.app_first, std::vector<Int>(board.steps + 1, 0)) {
        if (pool.by_node) {
            s.spare.assign(s.seats.begin() + pool.seat, s.seats.begin() + pool.seat + b.steps * pool.bins);
        } else {
            s.spare.resize(b.steps * pool.bins);
            for (Int t = 0; t < b.steps; ++t)
                for (Int i = 0; i < pool.bins; ++i) spare(t, i) = has(s.free.data() + pool.row + t * pool.words, gpu_of(i));
        }
        for (Int a = pool.app_first; a < pool.app_last; ++a) {
            const App& app = b.app[a];
            const std::vector<Int>& held = b.replicas[a];
            for (Int i = 0; i < Int(held.size()); i += app.replica) {
                Replica one_more{-1, 0, i / app.replica, false, {}};
                for (Int k = i; k < i + app.replica; ++k) add(one_more.pieces, bin_of(held[k]));
                if (app.cap == 0)
                    while (one_more.until < b.steps && !down(one_more.pieces, one_more.until)) ++one_more.until;
                else
                    one_more.until = until(one_more.pieces, 0);
                enter(a, std::move(one_more), 0);
            }
        }
    }

    Int bin_of(Int gpu) const { return b.gpu_bin[b.gpu_at[&pool - b.pool.data()] + gpu]; }

    Int gpu_of(Int bin) const { return b.bin_gpu[b.bin[pool.bin_first + bin].gpu_first]; }

    static void add(Pieces& pieces, Int bin) {
        for (Piece& piece : pieces)
            if (piece.bin == bin) {
                ++piece.gpus;
                return;
            }
        pieces.push_back({bin, 1});
    }

    Seats& spare(Int t, Int bin) { return s.spare[t * pool.bins + bin]; }

    bool down(const Pieces& pieces, Int t) const {
        return std::any_of(pieces.begin(), pieces.end(), [&](const Piece& x) { return is_down(b, pool, x.bin, t); });
    }

    Int until(const Pieces& pieces, Int from) {
        for (Int t = from; t < b.steps; ++t)
            for (const Piece& piece : pieces)
                if (spare(t, piece.bin) < piece.gpus) return t;
        return b.steps;
    }

    void reserve(Int a, const Replica& one, Int from, Int sign) {
        if (one.until < b.steps && !one.freely) taken[a - pool.app_first][one.until] += sign;
        if (b.app[a].cap == 0) return;
        for (const Piece& piece : one.pieces)
            for (Int t = from; t < one.until; ++t) spare(t, piece.bin) = Seats(spare(t, piece.bin) - sign * piece.gpus);
    }

    void enter(Int a, Replica one, Int t) {
        one.freely = one.until < b.steps && down(one.pieces, one.until);
        reserve(a, one, t, 1);
        mine[a - pool.app_first].push_back(std::move(one));
    }

    // How many more replicas lose their place, by any one step from `since` on, than can leave after t.
    Int due(Int a, Int t, Int since) const {
        const Int cap = b.app[a].cap / b.app[a].replica;
        Int gone = 0, worst = -kNoLimit;
        for (Int k = t; k < b.steps; ++k) {
            gone += taken[a - pool.app_first][k];
            if (k >= since) worst = std::max(worst, gone - cap * (k - t));
        }
        return worst;
    }

    // How many replicas an app is going to lack in some step after t, because those that lose their place by then use up
    // its swaps: so many more must enter now, while the others still stand.
    Int ahead(Int a, Int t) const {
        const App& app = b.app[a];
        const auto& list = mine[a - pool.app_first];
        if (app.cap == 0 || app.cap >= kNoCap) return 0;
        if (std::none_of(list.begin(), list.end(), [&](const Replica& one) { return one.until < b.steps; })) return 0;
        const Int cap = app.cap / app.replica, now = Int(list.size());
        Int paid = 0, worst = 0;
        for (Int k = t + 1; k < b.steps; ++k) {
            const Int wanted = s.count[a * b.steps + k] / app.replica, may = cap * (k - t);
            if (may >= now + wanted) break;
            paid += taken[a - pool.app_first][k];
            const auto lost = std::count_if(list.begin(), list.end(), [&](const Replica& one) { return one.until <= k; });
            worst = std::max(worst, wanted - (now - Int(lost)) - std::max<Int>(0, may - paid));
        }
        return worst;
    }

    void drop(Int a, std::size_t i, Int t, bool stays) {
        auto& list = mine[a - pool.app_first];
        reserve(a, list[i], t, -1);
        if (stays && list[i].until >= t) s.stays.push_back({a, list[i].since, t, list[i].held, list[i].pieces});
        list[i] = std::move(list.back());
        list.pop_back();
    }

    // Leave what jobs or closed GPUs take, and what is over the count; how many replicas cost a swap, or -1.
    Int leave(Int a, Int t, bool stays) {
        auto& list = mine[a - pool.app_first];
        for (std::size_t i = 0; i < list.size();)
            if (list[i].until == t && list[i].freely)
                drop(a, i, t, stays);
            else
                ++i;
        const App& app = b.app[a];
        if (app.cap == 0) return 0;
        const Int cap = app.cap / app.replica, now = Int(list.size());
        const Int must = due(a, t, t);
        if (must > cap) return -1;
        const Int go = std::max(must, std::min(now - s.count[a * b.steps + t] / app.replica, cap));
        if (go <= 0) return 0;
        const auto key = [&](const Replica& x) {
            const Int bin = x.pieces.front().bin;
            return std::tuple(x.until, pool.high ? -bin : bin, x.held, x.since);
        };
        // those that leave come last, from where they are dropped
        std::nth_element(list.begin(), list.end() - go, list.end(),
                         [&](const Replica& x, const Replica& y) { return key(y) < key(x); });
        for (Int i = 0; i < go; ++i) drop(a, list.size() - 1, t, stays);
        return go;
    }

    struct Room {
        Int until, node, many;  // replicas that it can take
    };

    // A node's room for `gpus` from a step on, and in `s.row` what stays free on its bins.
    bool room(Int n, Int gpus, Int t, Room& found) {
        const Node node = node_at(b, pool, n);
        if (sum(s.spare.data() + t * pool.bins, node) < gpus) return false;
        found.until = t;
        found.node = n;
        Seats* least = s.row.data();
        for (Int i = node.first; i < node.last; ++i)
            least[i] = b.seats_enter[pool.seat + t * pool.bins + i] ? spare(t, i) : Seats(0);
        Int many = sum(least, node) / gpus;
        for (; many > 0 && found.until < b.steps; ++found.until) {
            Int total = 0;
            for (Int i = node.first; i < node.last; ++i) total += std::min(least[i], spare(found.until, i));
            if (total < gpus) break;
            for (Int i = node.first; i < node.last; ++i) least[i] = std::min(least[i], spare(found.until, i));
            many = std::min(many, total / gpus);
        }
        found.many = many;
        return many > 0;
    }

    // Enter at most `wish` replicas where they can stay longest, on the tightest nodes; how many.
    Int enter_some(Int a, Int wish, Int t) {
        const App& app = b.app[a];
        const Int whole = std::max<Int>(1, app.replica / pool.node_size()), per = app.replica / whole;
        Int entered = 0;
        for (bool again = true; again && entered < wish;) {
            again = false;
            std::vector<Room> rooms;
            Room one;
            for (Int n = 0; n < pool.nodes; ++n)
                if (room(n, per, t, one)) rooms.push_back(one);
            const auto worse = [&](const Room& x, const Room& y) {
                const auto key = [&](const Room& r) { return std::tuple(-r.until, r.many, pool.high ? r.node : -r.node); };
                return key(y) < key(x);
            };
            std::make_heap(rooms.begin(), rooms.end(), worse);
            while (Int(rooms.size()) >= whole && entered < wish) {
                for (Int k = 0; k < whole; ++k) std::pop_heap(rooms.begin(), rooms.end() - k, worse);
                const std::vector<Room> chosen(rooms.end() - whole, rooms.end());
                rooms.resize(rooms.size() - whole);
                const Int stays_until = chosen.front().until;
                Int many = std::min(whole > 1 ? 1 : chosen.front().many, wish - entered);
                if (stays_until < b.steps && app.cap < kNoCap) many = std::min(many, -due(a, t, stays_until));
                for (; many > 0; --many) {
                    Replica fresh{t, stays_until, -1, false, {}};
                    for (const Room& each : chosen) {
                        room(each.node, per, t, one);
                        fast::take(s.row.data(), node_at(b, pool, each.node), per, fresh.pieces);
                    }
                    enter(a, std::move(fresh), t);
                    ++entered;
                    again = true;
                }
            }
        }
        return entered;
    }
};

}  // namespace

// Whether every app can leave its held replicas in time, if it never enters another (rule 4), now that a job is placed.
bool evicts_in_time(const Board& b, State& s, Int j) {
    const Shape& shape = b.shape[s.spot[j].shape];
    const Pool& pool = b.pool[shape.pool];
    const auto meets = [&](Int a) {
        const char* holds = b.holds.data() + b.holds_at[a];
        if (pool.by_node)
            return std::any_of(s.pieces[j].begin(), s.pieces[j].end(), [&](const Piece& x) { return holds[x.bin] != 0; });
        return std::any_of(holds + s.spot[j].first, holds + s.spot[j].first + shape.gpus, [](char x) { return x != 0; });
    };
    const auto tied = [&](Int a) {
        const App& app = b.app[a];
        return app.cap > 0 && app.cap < kNoCap && app.held_count > app.cap * (s.spot[j].start + 1) && meets(a);
    };
    bool any = false;
    for (Int a = pool.app_first; a < pool.app_last; ++a) any |= tied(a);
    if (!any) return true;
    const Walk walk(b, s, pool);
    for (Int a = pool.app_first; a < pool.app_last; ++a)
        if (const App& app = b.app[a]; app.cap > 0 && app.cap < kNoCap && walk.due(a, 0, 0) > app.cap / app.replica)
            return false;
    return true;
}

// As `name`, for a pool whose GPUs are counted by bin; `s.stays` gets the replicas where `stays`.
double name_on_nodes(const Board& b, State& s, Int p, bool keep, bool stays) {
    const Pool& pool = b.pool[p];
    Walk walk(b, s, pool);
    double total = 0.0;
    for (Int t = 0; t < b.steps; ++t) {
        for (Int a = pool.app_first; a < pool.app_last; ++a) {
            const Int went = walk.leave(a, t, stays);
            if (went < 0) return kInfinity;
            s.left[a] = b.app[a].cap / b.app[a].replica - went;
        }
        const auto enter = [&](Int a, Int wish) {
            if ((wish = std::min(wish, s.left[a])) <= 0) return;
            const Int came = walk.enter_some(a, wish, t);
            s.left[a] -= came;
            total += b.app[a].swap_price * b.weight[t] * double(came * b.app[a].replica);
        };
        const auto held = [&](Int a) { return Int(walk.mine[a - pool.app_first].size()); };
        for (Int i = pool.app_first; i < pool.app_last; ++i) {
            const Int a = b.tight[i];
            enter(a, s.count[a * b.steps + t] / b.app[a].replica - held(a));
        }
        for (Int i = pool.app_first; i < pool.app_last; ++i) {
            const Int a = b.tight[i];
            enter(a, walk.ahead(a, t));
            total += app_cost(b, a, t, held(a) * b.app[a].replica);
        }
        if (!keep) continue;
        if (pool.singles) {
            Word* set = s.trial.data() + pool.row + t * pool.words;
            std::fill_n(set, pool.words, 0);
            for (const auto& mine : walk.mine)
                for (const Replica& one : mine)
                    for (const Piece& piece : one.pieces) fill(set, walk.gpu_of(piece.bin), 1);
            continue;
        }
        Seats* row = s.trial_seats.data() + pool.seat + t * pool.bins;
        std::fill_n(row, pool.bins, Seats(0));
        for (Int a = pool.app_first; a < pool.app_last; ++a)
            for (const Replica& one : walk.mine[a - pool.app_first])
                for (const Piece& piece : one.pieces)
                    if (b.app[a].cap > 0) row[piece.bin] = Seats(row[piece.bin] + piece.gpus);
    }
    if (stays)
        for (Int a = pool.app_first; a < pool.app_last; ++a)
            for (const Replica& one : walk.mine[a - pool.app_first])
                s.stays.push_back({a, one.since, b.steps, one.held, one.pieces});
    return total;
}

// Name the GPUs of jobs and replicas in a pool: by start, those that have been free for the least time.
void assign(const Board& b, const State& s, Int p, std::vector<std::vector<Int>>& job_gpus,
            std::vector<std::vector<Int>>& stay_gpus) {
    const Pool& pool = b.pool[p];
    std::vector<Int> free_at(b.taken_until.begin() + b.gpu_at[p], b.taken_until.begin() + b.gpu_at[p] + pool.gpus);
    struct Span {
        Int start, end, at;
        bool job;
    };
    std::vector<Span> spans;
    for (Int i = 0; i < Int(s.stays.size()); ++i) {
        const Stay& stay = s.stays[i];
        if (stay.app < pool.app_first || stay.app >= pool.app_last) continue;
        if (stay.held < 0) {
            spans.push_back({stay.from, stay.until, i, false});
            continue;
        }
        const Int r = b.app[stay.app].replica;
        const auto held = b.replicas[stay.app].begin() + stay.held * r;
        stay_gpus[i].assign(held, held + r);
        for (Int g : stay_gpus[i]) free_at[g] = std::max(free_at[g], stay.until);
    }
    for (Int j = 0; j < Int(s.spot.size()); ++j) {
        const Spot& spot = s.spot[j];
        if (pool.by_node && spot.shape >= 0 && b.shape[spot.shape].pool == p)
            spans.push_back({spot.start, spot.start + b.shape[spot.shape].steps, j, true});
    }
    std::stable_sort(spans.begin(), spans.end(), [](const Span& x, const Span& y) { return x.start < y.start; });
    for (const Span& one : spans) {
        auto& gpus = one.job ? job_gpus[one.at] : stay_gpus[one.at];
        for (const Piece& piece : one.job ? s.pieces[one.at] : s.stays[one.at].pieces) {
            const Bin& bin = b.bin[pool.bin_first + piece.bin];
            for (Int n = 0; n < piece.gpus; ++n) {
                Int best = -1;
                for (Int k = bin.gpu_first; k < bin.gpu_last; ++k) {
                    const Int g = b.bin_gpu[k];
                    if (free_at[g] <= one.start && (best < 0 || free_at[g] > free_at[best])) best = g;
                }
                free_at[best] = one.end;
                gpus.push_back(best);
            }
        }
        std::sort(gpus.begin(), gpus.end());
    }
}

}  // namespace tidegrid::fast
