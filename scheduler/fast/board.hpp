// What does not change while the search runs.
#pragma once

#include <tuple>
#include <vector>

#include "problem.hpp"

namespace tidegrid::fast {

constexpr Int kNoCap = Int{1} << 40;
constexpr Int kNoLimit = Int{1} << 60;

struct Pool {
    Int gpus, words;  // words of a set
    Int row;          // first word of step 0
    Int legal;        // where its sets of legal first GPUs begin, one for each power of two
    Int app_first, app_last;
    Int node;        // GPUs of a node; 0: no nodes
    bool named;      // whether the apps' GPUs must be named to know what their shortfall costs
    bool high;       // whether jobs are packed from the last GPU down
    bool by_node;    // whether jobs take GPUs of any nodes, and are counted by bin
    bool drains;     // whether some of its GPUs may not be entered in some steps
    bool down;       // whether some of its GPUs are down in some steps
    Int late_first, late_last;
    bool floors;     // whether some of its apps have a floor
    bool singles;    // whether apps take whole replicas in a line: each GPU is a bin of its own
    // Of a pool with bins: these, its nodes, where its rows of seats begin.
    Int bin_first, bins, node_first, nodes, seat;

    bool binned() const { return by_node || singles; }
    Int node_size() const { return node == 0 ? gpus : node; }
};

// GPUs of one node that are equal: none is closed when another is not, none lies in a `within` range that another
// does not lie in. What lies on a bin is counted; which GPUs these are is named in the end, by start, and always
// can be: nothing that is there before step 0 comes later than what is named.
struct Bin {
    Int node;
    Int gpu_first, gpu_last;  // in `Board::bin_gpu`
    Int late;                 // first step past the horizon in which it is down
    Int size() const { return gpu_last - gpu_first; }
};

using Seats = std::int16_t;
constexpr Int kMostSeats = 32000;  // of a bin, so that a count fits

// GPUs that go down past the horizon: no job that ends after `from` may lie on them.
struct Late {
    Int from;
    Int at;  // first word of the set of the other GPUs
};

struct App {
    double price, floor_price, swap_price;  // of a GPU short, of one below the floor on top, of one that enters
    Int cap, held_count, replica;
};

struct Job {
    double value;  // tilted priority
    Int earliest;
    Int shape_first, shape_last;
    Int original;  // as listed in the problem
};

struct Shape {
    Int pool, gpus, log, steps;
    Int latest;   // last step at which it may start
    double work;  // GPU-steps of work done in a step, times the chance of success
    double rate;  // tilted reward of a step of weight 1
    double thrift;  // logarithm of its work a GPU-step over the most that the job does in this pool: 0 or less
    Int told = -1;         // start that was promised; -1: none
    double promise = 0.0;  // what each step later costs
    Int nodes;    // that it lies on, where placement is by node
    Int within;   // set of the GPUs that it may use; -1: any
    Int limit_first, limit_last;
};

struct Limit {
    Int at;     // row of `State::load`
    Int weigh;  // what the shape adds in each step
};

// A row of the problem's `within` or legal sets is `words` words of the pool.
struct Board {
    Int steps, width;
    Int most_words = 1;
    bool thrift = false;  // whether some shapes take more GPU-steps than others for the same work
    std::vector<Pool> pool;  // by id
    std::vector<App> app;    // by pool and falling priority
    std::vector<Job> job;    // those that wait, by (order, id)
    std::vector<Shape> shape;
    std::vector<Int> shape_of;  // by shape of the problem; -1: it has no place
    std::vector<Word> base;   // flat sets: GPUs that are free of what cannot move
    std::vector<Word> down;   // flat sets like `base`: GPUs that are down; empty where none ever is
    std::vector<Word> enter;  // flat sets like `base`: GPUs that may be entered; empty where all always may
    std::vector<Word> legal;  // flat sets: first GPUs that rule 3 allows, by pool and size
    std::vector<Word> within;
    std::vector<Bin> bin;            // by pool and node
    std::vector<Int> bin_gpu;
    std::vector<Int> node_bin;       // (nodes + 1 of each pool) first bin of each node, in its pool
    std::vector<Seats> seats;        // by pool, step and bin: GPUs that are free of what cannot move
    std::vector<char> seats_enter;   // like `seats`: whether the bin may be entered
    std::vector<Int> gpu_bin;        // by pool and GPU: its bin, in its pool
    std::vector<Int> gpu_at;         // (P) where a pool begins in `gpu_bin` and `taken_until`
    std::vector<Int> taken_until;    // steps for which what runs, and what may not move, keeps a GPU
    std::vector<std::vector<Int>> replicas;  // (A) GPUs held, replica after replica
    std::vector<char> holds;                 // by app and bin of its pool: whether it holds GPUs there
    std::vector<Int> holds_at;               // (A) where an app begins in `holds`
    std::vector<Late> late;
    std::vector<Word> spared;  // flat sets, for `late`
    std::vector<Word> held;         // (A, most words)
    std::vector<Int> demand;        // (A, width)
    std::vector<Int> floor;         // (A, steps)
    std::vector<double> before;     // (steps + 1) sum of tilted weights before a step
    std::vector<double> weight;     // (width)
    std::vector<double> cost;       // flat: penalty of a pool and step by GPUs short
    std::vector<Int> cost_at;       // (P, width) where the penalties for 0, 1, 2 … GPUs short begin
    std::vector<Int> wanted;        // (P, width) demand of all apps
    std::vector<Int> base_used;     // (P, width) GPUs that nothing which moves may use
    std::vector<Limit> limit;       // by shape
    std::vector<Int> limit_most;    // what is left of each limit does not depend on the step: what runs is in `base_load`
    std::vector<Int> base_load;     // (limits, steps) what runs counts
    std::vector<std::vector<Int>> before_job, after_job;  // jobs that must end before one, and those that wait for it
    std::vector<Int> ready;         // first step at which what runs lets a job start
    std::vector<Int> pool_of, app_of;  // as listed in the problem
    std::vector<Int> tight;            // apps of each pool from the smallest cap up

    const Int* demand_of(Int a) const { return demand.data() + a * width; }
    const Int* floor_of(Int a) const { return floor.data() + a * steps; }
    const Word* held_of(Int a) const { return held.data() + a * most_words; }
    Int wanted_at(Int p, Int t) const { return wanted[p * width + t]; }
    // Tilted reward of a job in a shape from a start; a promised start earns what each step later then costs.
    double worth(const Shape& shape, Int start) const {
        const double reward = shape.rate * (before[std::min(start + shape.steps, steps)] - before[start]);
        return shape.told < 0 ? reward : reward + shape.promise * double(steps - std::max(start, shape.told));
    }
    const Word* enter_at(Int p, Int t) const {
        return pool[p].drains ? enter.data() + pool[p].row + t * pool[p].words : nullptr;
    }
};

Board make_board(const tg_problem& in);

}  // namespace tidegrid::fast
