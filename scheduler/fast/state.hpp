// What changes while the search runs: jobs put on the board and taken off, and what the apps' shortfall then costs.
#pragma once

#include <limits>

#include "board.hpp"

namespace tidegrid::fast {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Int kMostRuined = 24;  // jobs that one round may take off
constexpr Int kMostTried = 12;   // waiting jobs that one round may try besides

// Jobs know what apps lose whose GPUs are named, keep off their cells, or know of no caps.
enum class Heed { exact, apart, guess };

// Settings of the search, found on random problems of 8–16 GPUs and 10–24 jobs and on zero-waste boards.
struct Settings {
    double heat;     // first temperature, as a share of a placed job's mean reward
    double cooling;  // power with which the temperature falls
    double blink;    // chance that a repair ignores a start
    double noise;    // of the order in which jobs are put back
    double eject;    // chance that a round puts a waiting job in others' place
    double near;     // … or else takes off jobs near each other, up to this chance, or else any
    double ruin_share;
    double share;  // how much of a displaced job's reward counts as lost
    double chain;  // chance that it takes off too what comes later on the same GPUs
    double wide;   // chance that a round looks at all steps for the jobs that waited, not at the ruined ones
    double apart;  // chance that a round keeps jobs off the cells of apps whose GPUs are named
    double guess;  // … or else prices their shortfall without caps, up to this chance
    std::int64_t tries;  // waiting jobs that a round tries to fit in
    std::int64_t most_near, most_any;
    std::int64_t ruin_least;  // jobs taken off: at least, a random number besides, and of it a share of those placed
    std::int64_t ruin_more;
    std::int64_t reach;   // GPUs and steps around a job that count as near
    std::int64_t places;  // places that a waiting job looks at
};

// Numbers of a 64-bit xorshift* generator (Vigna 2016, An experimental exploration).
struct Random {
    Word x;
    double uniform() {  // in [0, 1)
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        return double((x * 2685821657736338717u) >> 11) * (1.0 / 9007199254740992.0);
    }
    Int below(Int n) { return std::min(Int(uniform() * double(n)), n - 1); }
};

struct Spot {
    Int shape = -1, start = -1, first = -1;  // shape -1: not placed
};

// What lies on a bin of a pool.
struct Piece {
    Int bin, gpus;
};
using Pieces = std::vector<Piece>;

struct Logged {
    Int job;
    Spot was;
    Pieces pieces;
};

// A replica of an app from a step to another.
struct Stay {
    Int app, from, until;  // until: the step in which jobs take its place, or it leaves
    Int held;              // its number among those held before step 0; -1: it enters
    Pieces pieces;
};

struct State {
    std::vector<Word> free;  // flat sets: GPUs free of jobs, by pool and step
    std::vector<Int> used;   // (P, width) GPUs that jobs use
    std::vector<Int> load;   // (limits, steps) what counts against each limit
    std::vector<Spot> spot;  // by job
    double reward = 0.0;     // tilted reward of what is placed
    std::vector<double> pool_cost;  // what the shortfall of each pool costs, counting GPUs
    Random random;
    std::vector<Word> window;  // flat sets that stay free, by start
    std::vector<Word> hit;     // held GPUs that jobs take
    std::vector<double> sums;  // (width + 1) added penalty before a step
    std::vector<Int> shut;     // (steps + 1) steps before a step in which a limit is reached
    std::vector<Int> reserve;  // (A, steps) GPUs kept for each app's floor while others choose
    std::vector<Int> open;     // (steps) GPUs of the pool at hand that apps may enter
    std::vector<Int> room, most, line;  // (steps) of the pool at hand; `line`: ceilings before a trial, or bridged counts
    std::vector<Pieces> pieces, best_pieces;  // by job, in pools whose GPUs are counted by bin
    std::vector<Seats> seats;                 // by pool, step and bin: GPUs free of jobs
    std::vector<Seats> held_seats, trial_seats;  // like `seats`: GPUs that apps hold in the plan at hand, in the one tried
    std::vector<Seats> spare;                    // like `seats` of a pool: free of jobs and of replicas
    std::vector<Seats> least;                    // (steps, bins) seats that stay free, by start
    std::vector<Seats> row;                      // (bins)
    std::vector<Stay> stays;                     // of the apps of the pool that was named last
    std::vector<Spot> best;             // best placements so far
    std::vector<Logged> log;            // jobs that a round has touched, and where they were
    std::vector<Int> todo;              // jobs to insert
    std::vector<double> key;            // what they are sorted by
    std::vector<double> area, size;     // largest area and block of each job
    std::vector<Int> count;             // (A, steps) GPUs that each app is to hold
    std::vector<Int> hold_count, left;  // (A) GPUs that each app holds, and moves that it has left, in the step at hand
    std::vector<Int> turn, best_turn;   // apps of a pool in the order in which they choose; for the best placements
    std::vector<Int> ceiling, best_ceiling, old_ceiling;  // (A, steps) GPUs that each app may hold at most
    std::vector<Word> hold;                               // (A, most words) GPUs that each app holds in the step at hand
    std::vector<Word> run, gone;
    std::vector<Word> cells, trial;  // like `free`: GPUs that apps hold in the plan at hand, and in the one tried
    std::vector<Int> kept;           // (P, steps) how many they are
    std::vector<double> named, named_trial;  // what the shortfall of each pool costs with these GPUs; -1: not named
    Heed heed = Heed::exact;
    double thrift = 0.0;     // power with which shapes that waste GPU-steps count for less where a job goes
    bool disturbed = false;  // whether a job has taken a cell that an app holds in the plan at hand

    State(const Board& b, Int seed);
};

void put(const Board& b, State& s, Int j, Spot spot, const Pieces& pieces = {});
void lift(const Board& b, State& s, Int j);
void clear(const Board& b, State& s);
void record(State& s);
void restore(const Board& b, State& s, const std::vector<Spot>& spots, const std::vector<Pieces>& pieces);

// Penalty of a pool in a step where jobs use so many GPUs and apps may take all the others.
inline double short_cost(const Board& b, Int p, Int t, Int used) {
    const Int at = p * b.width + t;
    return b.cost[b.cost_at[at] + std::max<Int>(0, b.wanted[at] - (b.pool[p].gpus - used))];
}

// What an app's shortfall costs in a step.
inline double app_cost(const Board& b, Int a, Int t, Int held) {
    const Int demand = b.demand_of(a)[t];
    if (held >= demand) return 0.0;
    double cost = b.app[a].price * b.weight[t] * double(demand - held);
    if (const Int floor = b.floor_of(a)[t]; held < floor) cost += b.app[a].floor_price * b.weight[t] * double(floor - held);
    return cost;
}

// First step at which the jobs that must end before one let it start; none where one of them has no place.
Int ready(const Board& b, const State& s, Int j);

// Fill `s.shut` for a shape; false where it counts in no limit.
bool count_shut(const Board& b, State& s, const Shape& shape);

// Whether the limits allow a shape from a start.
bool within_limits(const Board& b, const State& s, const Shape& shape, Int start);

// Part of a block's outline that touches other blocks or the board's edge, from 0 to 1.
double contact(const Board& b, const State& s, Int p, Int size, Int start, Int length, Int first);

// Choose in `s.count` how many GPUs each app holds; what the shortfall in the horizon costs.
double count_apps(const Board& b, State& s, Int p, Int start, Int end, Int size);

// Penalty of a pool, counting GPUs, if a block of `size` were added from `start` to `end`.
double pool_penalty(const Board& b, State& s, Int p, Int start = 0, Int end = 0, Int size = 0);

// apps.cpp
void settle(const Board& b, State& s, Int p);
double name(const Board& b, State& s, Int p, bool keep, std::int32_t* owners);
double tail_penalty(const Board& b, const State& s, Int p);
double full_penalty(const Board& b, State& s, Int p);
void adopt(const Board& b, State& s, Int p);

// insert.cpp
bool keeps_caps(const Board& b, State& s, Int p, Int start, Int first, Int size);
bool may_start(const Board& b, const Shape& shape, Int start, Int first);
bool insert(const Board& b, State& s, Int j, double fit, double blink, Int since, Int until);

struct Place {
    double gain = 0.0;  // marginal objective · (1 + fit · contact)
    Spot spot;
    Pieces pieces;
};

// What a place costs the apps of its pool beyond its own reward, and how the search treats them.
struct Pricing {
    bool wanted, apart, exact, limited;
};
Pricing price(const Board& b, State& s, const Shape& shape, Int low, Int high);

// nodes.cpp: pools whose jobs take GPUs of any nodes
void look_on_nodes(const Board& b, State& s, Int k, Int low, Int high, double fit, double blink, Place& best);
bool find_pieces(const Board& b, State& s, const Shape& shape, Int start, Pieces& pieces);
bool make_room(const Board& b, State& s, const Shape& shape, Int start, std::vector<Int>& taken_off);
double name_on_nodes(const Board& b, State& s, Int p, bool keep, bool stays);
void assign(const Board& b, const State& s, Int p, std::vector<std::vector<Int>>& job_gpus,
            std::vector<std::vector<Int>>& stay_gpus);
bool evicts_in_time(const Board& b, State& s, Int j);

// Best place of a shape from a start to another, both included.
Place look(const Board& b, State& s, Int k, Int low, Int high);

// shift.cpp
void shift_left(const Board& b, State& s);

// ruin.cpp
void ruin_near(const Board& b, State& s, Int most, Int reach);
void ruin_any(const Board& b, State& s, Int most);
void eject(const Board& b, State& s, Int j, const Settings& k);
void undo(const Board& b, State& s);

// share.cpp
double swap_turns(const Board& b, State& s, Int p, Int first, Int last);
double bend(const Board& b, State& s, Int p, Int tries);

// search.cpp
struct Start {
    std::vector<Spot> spots;
    std::vector<Pieces> pieces;
    double charged;  // what its own apps cost within the horizon; infinite where it has none
};
struct Begun {
    Int own = -1;  // the start that is worth most with its own apps
    double worth = -kInfinity;
};
Begun begin(const Board& b, State& s, const std::vector<Start>& starts);
double improve(const Board& b, State& s, Int rounds, const Settings& k);
double finish(const Board& b, State& s, std::int32_t* owners, const std::vector<Int>& owner_at);
double settle_jobs(const Board& b, State& s, std::int32_t* owners, const std::vector<Int>& owner_at);

}  // namespace tidegrid::fast
