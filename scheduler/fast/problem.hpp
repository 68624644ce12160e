// A problem as it comes over the C interface: pointers to arrays that the caller keeps alive.
#pragma once

#include "bits.hpp"

// All integers are 64-bit; an array of pairs or triples is flat. J jobs as listed, S shapes, P pools, A apps, L steps
// with the lookahead. `*_start` arrays have one element more than what they divide.
struct tg_problem {
    std::int64_t steps, width, jobs, shapes, pools, apps, closed, limits;
    double shortfall_weight, step_minutes, floor_weight, gpu_cost, swap_cost;
    const double* weight;  // (L)
    // Pools. `pool_rank`: place in the order of ids; `pool_by_node`: whether placement is by node; node size 0: none.
    const std::int64_t *pool_gpus, *pool_node, *pool_rank, *pool_by_node;
    // Jobs. `rank`: place in arrival order; `id_rank`: in the order of ids; pool -1 in `run_pool`: the job waits.
    const double* priority;
    const std::int64_t *rank, *id_rank, *earliest, *latest_end, *requested;
    const std::int64_t *run_pool, *run_steps, *run_start, *run_gpu;  // GPUs of running jobs, by job
    const std::int64_t *after_start, *after;                         // jobs that must have ended, by job
    const std::int64_t *limit_start, *limit;                         // limits that a job counts in, by job
    // Shapes, by job. `shape_rate`: GPU-steps of work a step, times the chance of success.
    const std::int64_t *shape_start, *shape_pool, *shape_gpus, *shape_steps, *shape_nodes;
    const double* shape_rate;
    const std::int64_t *within_start, *within;  // pairs (first GPU, GPUs), by shape; none: anywhere
    // Limits: the most, the pool where it counts (-1: all), whether GPUs count (else jobs).
    const std::int64_t *limit_most, *limit_pool, *limit_gpus;
    // Closed GPUs: pool, first, last + 1, from, to, whether they are down (else they drain); six numbers each.
    const std::int64_t* closed_at;
    // Apps. Cap -1: none. GPUs held, by app, replica after replica.
    const std::int64_t *app_pool, *app_cap, *app_rank, *app_floor, *app_replica, *demand, *held_start, *held;
    const double* app_priority;
};
