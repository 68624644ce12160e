// Free GPUs of a pool from step 0 on, past the horizon too, and where a job fits.
#pragma once

#include <vector>

#include "scheduler/fast/problem.hpp"

namespace tidegrid::queue {

using fast::Int;
using fast::Word;
using Set = std::vector<Word>;
using Gpus = std::vector<Int>;

constexpr Int kNever = Int{1} << 40;

// A job with the one shape that a queue gives it.
struct Task {
    Int shape = -1;  // of the problem; -1: none fits, the job has no place
    Int pool = 0, gpus = 0, steps = 0, nodes = 1;
    Int earliest = 0, latest_end = 0;
    Set within;  // GPUs that it may use; empty: any

    Int per_node() const { return gpus / nodes; }
};

// GPUs that are kept for a job from a step on.
struct Reservation {
    Int start = -1;  // -1: none
    Set gpus;
};

// GPUs at which nothing may start in some steps.
struct Drain {
    Int first, last, from, to;
};

class Timeline {
  public:
    Timeline(const tg_problem& in, Int pool);

    // Take GPUs from a step to another (exclusive; kNever: for ever).
    void take(const Gpus& gpus, Int from, Int until);

    // Whether a job fits at a step; its GPUs by the placement rule. What is reserved counts as free until it begins.
    bool fits(const Task& task, Int start, const Reservation* reserved, Gpus& gpus) const;

    // First step from `from` on at which a job fits, and its GPUs; -1: none.
    Int earliest(const Task& task, Int from, Gpus& gpus) const;

    // Whether a job would fit the empty pool.
    bool holds(const Task& task) const;

    Int free_at(Int step) const { return rows_[row_at(step)].free; }

    // Next step at which the free GPUs may change; kNever: none.
    Int next_change(Int step) const;

    Set set_of(const Gpus& gpus) const;

  private:
    struct Row {
        Int begin, free;
        Set set;
    };

    std::size_t row_at(Int step) const;
    std::size_t split(Int step);
    bool choose(const Set& free, const Task& task, Gpus& gpus) const;
    bool choose_block(const Set& free, Int size, Gpus& gpus) const;
    bool choose_nodes(const Set& free, const Task& task, Gpus& gpus) const;

    Int gpus_, node_;
    bool by_node_;
    std::vector<Row> rows_;  // by step; the last reaches for ever
    std::vector<Drain> drains_;
};

}  // namespace tidegrid::queue
