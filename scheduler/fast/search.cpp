// Greedy starts, then ruin and recreate for a number of rounds; deterministic for a seed.

#include <cmath>
#include <numeric>

#include "state.hpp"

namespace tidegrid::fast {

namespace {

constexpr double kStartFit = 0.02;   // what full contact is worth against the marginal objective in a greedy start
constexpr double kStrictly = 1e-13;  // gains below this share are rounding
constexpr Int kMostPasses = 4;       // over the order in which apps choose
constexpr Int kTurnEvery = 8;        // rounds between two looks at how apps share
constexpr double kLavish = 0.4, kSparing = 0.3;  // shares of rounds with thrift 0 and 1
constexpr double kThrifty = 3.0;                 // of the others, and of further greedy starts
constexpr Int kFewJobs = 100;                    // up to which there are such starts: beyond, their time counts
constexpr Int kFirstBends = 40, kBends = 6;  // ceilings that are tried in the start, and in each look

Int pools(const Board& b) { return Int(b.pool.size()); }

bool above(double found, double best) {
    return best == -kInfinity ? found > best : found > best + kStrictly * std::abs(best);
}

bool any_named(const Board& b) {
    return std::any_of(b.pool.begin(), b.pool.end(), [](const Pool& pool) { return pool.named; });
}

// Tilted reward less penalty of the board, or something below `least` as soon as it cannot be more.
//
// Where no job has taken a cell of the apps and these are short of nothing, the names at hand still serve, unless
// `anew`. What counts alone cannot reach is not worth naming.
double weigh(const Board& b, State& s, double least, bool anew) {
    double total = s.reward;
    bool open = false;
    for (Int p = 0; p < pools(b); ++p) {
        const Pool& pool = b.pool[p];
        if (pool.app_last == pool.app_first) continue;
        if (pool.named && !s.disturbed && s.named[p] == 0.0 && !anew) {
            total -= tail_penalty(b, s, p);
            s.named_trial[p] = -1.0;
        } else {
            s.named_trial[p] = pool_penalty(b, s, p);
            total -= s.named_trial[p];
            open |= pool.named;
        }
    }
    if (!open || total < least) return total;
    for (Int p = 0; p < pools(b); ++p) {
        if (!b.pool[p].named || s.named_trial[p] < 0.0) continue;
        total += s.named_trial[p];
        total -= full_penalty(b, s, p);
    }
    return total;
}

// Order the jobs to insert by one of four measures, with noise.
void sort_todo(const Board& b, State& s, double noise) {
    const Int how = s.random.below(4);
    const Int many = Int(s.todo.size());
    s.key.resize(many);
    for (Int i = 0; i < many; ++i) {
        const Int j = s.todo[i];
        double measure = 1.0;
        if (how == 0) measure = b.job[j].value;
        if (how == 1) measure = b.job[j].value * s.area[j];
        if (how == 2) measure = s.area[j] * s.size[j];
        s.key[i] = -measure * (1.0 + (how == 3 ? 4.0 : noise) * s.random.uniform());
    }
    for (Int i = 1; i < many; ++i) {
        const double key = s.key[i];
        const Int j = s.todo[i];
        Int m = i - 1;
        for (; m >= 0 && s.key[m] > key; --m) {
            s.key[m + 1] = s.key[m];
            s.todo[m + 1] = s.todo[m];
        }
        s.key[m + 1] = key;
        s.todo[m + 1] = j;
    }
}

// Orders in which greedy starts insert the jobs.
std::vector<std::vector<Int>> orders(const Board& b, const State& s) {
    const auto by = [&](auto key) {
        std::vector<Int> order(b.job.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](Int i, Int j) { return key(i) < key(j); });
        return order;
    };
    return {by([&](Int j) { return std::pair(-b.job[j].value, -s.area[j]); }),
            by([&](Int j) { return -b.job[j].value * s.area[j]; })};
}

// Insert jobs in an order, each once those that must end before it have a place or cannot get one.
void insert_all(const Board& b, State& s, const std::vector<Int>& order) {
    for (bool again = true; again;) {
        again = false;
        for (Int j : order) {
            if (s.spot[j].shape >= 0 || ready(b, s, j) >= b.steps) continue;
            again |= insert(b, s, j, kStartFit, 0.0, 0, b.steps) && !b.after_job[j].empty();
        }
    }
}

// A random round's jobs to insert: those that it took off, then some that wait.
Int collect(const Board& b, State& s, Int tries, Int& since, Int& until) {
    const Int n = Int(b.job.size());
    s.todo.clear();
    since = b.steps;
    until = 0;
    for (const Logged& one : s.log) {
        if (one.was.shape < 0) continue;
        s.todo.push_back(one.job);
        since = std::min(since, one.was.start);
        until = std::max(until, one.was.start + b.shape[one.was.shape].steps);
    }
    const Int ruined = Int(s.todo.size());
    Int at = s.random.below(n);
    for (Int i = 0; i < n; ++i) {
        at = at + 1 < n ? at + 1 : 0;
        if (s.spot[at].shape >= 0 || b.job[at].shape_last == b.job[at].shape_first) continue;
        if (std::any_of(s.log.begin(), s.log.end(), [&](const Logged& one) { return one.job == at; })) continue;
        s.todo.push_back(at);
        if (Int(s.todo.size()) - ruined >= tries) break;
    }
    return ruined;
}

void recreate(const Board& b, State& s, const Settings& k, Int since, Int until) {
    const double draw = s.random.uniform();
    const double fit = draw < 0.4 ? 0.001 : draw < 0.8 ? 0.03 : 0.2;
    if (s.random.uniform() < k.wide) {
        since = 0;
        until = b.steps;
    }
    const std::size_t logged = s.log.size();
    bool again = true;
    for (Int pass = 0; again && pass < 3; ++pass) {
        again = false;
        for (Int j : s.todo) {
            if (pass > 0 && (s.spot[j].shape >= 0 || b.before_job[j].empty())) continue;
            const bool fresh =
                std::none_of(s.log.begin(), s.log.begin() + logged, [&](const Logged& one) { return one.job == j; });
            // What waits can only gain where the round has made room.
            if (!insert(b, s, j, fit, k.blink, fresh ? since : 0, fresh ? until : b.steps)) continue;
            again |= !b.after_job[j].empty();
            if (fresh) s.log.push_back({j, Spot{}, {}});
        }
    }
}

}  // namespace

// Find the best of a number of starts, which `s.best` gets: legal placements, and jobs inserted greedily in some
// orders, each with the jobs off the cells that apps want and without that.
Begun begin(const Board& b, State& s, const std::vector<Start>& starts) {
    Begun own;
    double best = -kInfinity;
    const Int given = Int(starts.size());
    const auto order = orders(b, s);
    const Int ways = Int(order.size());
    const Int all = ways * (b.thrift && Int(b.job.size()) <= kFewJobs ? 2 : 1);
    for (Int i = 0; i < given + all * (any_named(b) ? 2 : 1); ++i) {
        if (i < given) {
            restore(b, s, starts[i].spots, starts[i].pieces);
            double found = s.reward - starts[i].charged;
            for (Int p = 0; p < pools(b); ++p) found -= tail_penalty(b, s, p);
            if (found > own.worth) own = {i, found};
        } else {
            clear(b, s);
            s.heed = i >= given + all ? Heed::apart : Heed::exact;
            for (Int p = 0; p < pools(b); ++p) {
                if (s.heed == Heed::apart) {
                    s.pool_cost[p] = full_penalty(b, s, p);
                    adopt(b, s, p);
                } else {
                    s.pool_cost[p] = pool_penalty(b, s, p);
                }
            }
            s.thrift = (i - given) % all < ways ? 0.0 : kThrifty;
            insert_all(b, s, order[(i - given) % ways]);
            s.thrift = 0.0;
        }
        const double found = weigh(b, s, -kInfinity, true);
        if (i == 0 || above(found, best)) {
            best = found;
            record(s);
        }
    }
    restore(b, s, s.best, s.best_pieces);
    for (Int p = 0; p < pools(b); ++p) {
        const Pool& pool = b.pool[p];
        double saved = pool.named ? 1.0 : 0.0;
        for (Int i = 0; i < kMostPasses && saved > 0.0; ++i) {
            saved = swap_turns(b, s, p, pool.app_first, pool.app_last - 1);
            saved += bend(b, s, p, kFirstBends);
        }
    }
    record(s);
    return own;
}

// Ruin and recreate (Schrimpf et al. 2000) from the board as it stands, cooling. `s.best` gets the best placements;
// what they are worth.
double improve(const Board& b, State& s, Int rounds, const Settings& k) {
    const Int n = Int(b.job.size());
    double here = weigh(b, s, -kInfinity, true);
    double best = here;
    record(s);
    Int placed = 0;
    for (const Spot& spot : s.spot) placed += spot.shape >= 0;
    const bool named = any_named(b);
    for (Int p = 0; p < pools(b); ++p) adopt(b, s, p);
    const double unit = s.reward / double(std::max<Int>(1, placed));
    for (Int r = 0; r < rounds; ++r) {
        if (r % kTurnEvery == 0) {
            const Int p = s.random.below(pools(b));
            const Pool& pool = b.pool[p];
            if (const Int apps = pool.app_last - pool.app_first; pool.named && apps > 1) {
                const Int i = pool.app_first + s.random.below(apps - 1);
                swap_turns(b, s, p, i, i + 1);
                bend(b, s, p, kBends);
                here = weigh(b, s, -kInfinity, true);
            }
        }
        const double mood = named ? s.random.uniform() : 1.0;
        s.heed = mood < k.apart ? Heed::apart : mood < k.guess ? Heed::guess : Heed::exact;
        s.disturbed = false;
        if (b.thrift) {
            const double taste = s.random.uniform();
            s.thrift = taste < kLavish ? 0.0 : taste < kLavish + kSparing ? 1.0 : kThrifty;
        }
        const double temperature = k.heat * unit * std::pow(1.0 - double(r) / double(rounds), k.cooling);
        std::fill(s.pool_cost.begin(), s.pool_cost.end(), 0.0);
        const Int most = k.ruin_least + s.random.below(std::min(kMostRuined - 4,
                                                                k.ruin_more + Int(k.ruin_share * double(placed))));
        const double how = s.random.uniform();
        s.log.clear();
        Int waiting = -1;
        if (how < k.eject) {
            Int at = s.random.below(n);
            for (Int i = 0; i < n && waiting < 0; ++i) {
                if (s.spot[at].shape < 0 && b.job[at].shape_last > b.job[at].shape_first) waiting = at;
                at = at + 1 < n ? at + 1 : 0;
            }
        }
        if (waiting >= 0)
            eject(b, s, waiting, k);
        else if (how < k.near)
            ruin_near(b, s, std::min(most, k.most_near), k.reach);
        else
            ruin_any(b, s, std::min(most, k.most_any));
        Int since, until;
        collect(b, s, k.tries, since, until);
        for (Int p = 0; p < pools(b); ++p)
            if (b.pool[p].named && s.heed == Heed::exact) s.pool_cost[p] = pool_penalty(b, s, p);
        sort_todo(b, s, k.noise);
        recreate(b, s, k, since, until);
        const double least = here + temperature * std::log(1.0 - s.random.uniform());
        double there = weigh(b, s, least, false);
        if (there < least) {
            undo(b, s);
            continue;
        }
        here = there;
        for (Int p = 0; p < pools(b); ++p) adopt(b, s, p);
        if (!above(here, best)) continue;
        // Names made anew may serve less than those that were kept: only what they reach counts.
        if (named) there = weigh(b, s, -kInfinity, true);
        if (!above(there, best)) continue;
        best = there;
        record(s);
    }
    return best;
}

// Move jobs to GPUs that are free earlier, then name the apps' GPUs where that cannot cost any; the objective without
// what the apps of the other pools are short of within the horizon.
double settle_jobs(const Board& b, State& s, std::int32_t* owners, const std::vector<Int>& owner_at) {
    shift_left(b, s);
    double total = s.reward;
    for (Int p = 0; p < pools(b); ++p) {
        const Pool& pool = b.pool[p];
        if (pool.app_last == pool.app_first) continue;
        total -= tail_penalty(b, s, p);
        if (pool.named) continue;
        count_apps(b, s, p, 0, 0, 0);
        settle(b, s, p);
        std::fill_n(owners + owner_at[p], pool.gpus * b.steps, -1);
        total -= name(b, s, p, false, owners + owner_at[p]);
    }
    return total;
}

// Set `s.spot` to the best placements and `owners` to the app on each GPU and step; the objective.
double finish(const Board& b, State& s, std::int32_t* owners, const std::vector<Int>& owner_at) {
    restore(b, s, s.best, s.best_pieces);
    for (Int p = 0; p < pools(b); ++p) {
        if (full_penalty(b, s, p) < kInfinity) continue;
        clear(b, s);  // place nothing, and let every app keep what it holds: that is always legal
        break;
    }
    s.stays.clear();
    double total = 0.0;
    for (Int p = 0; p < pools(b); ++p) {
        const Pool& pool = b.pool[p];
        if (pool.app_last == pool.app_first || !pool.named) continue;
        count_apps(b, s, p, 0, 0, 0);
        const double plain = name(b, s, p, false, nullptr);
        settle(b, s, p);
        // What is kept over a dip may cost moves that a cap has not; then no dip is bridged.
        if (name(b, s, p, false, nullptr) > plain) count_apps(b, s, p, 0, 0, 0);
        s.named_trial[p] = name(b, s, p, true, owners + owner_at[p]);
        total -= s.named_trial[p];
        adopt(b, s, p);
    }
    return total + settle_jobs(b, s, owners, owner_at);
}

}  // namespace tidegrid::fast
