// What the baselines do, as starts of the search.
#pragma once

#include <span>

#include "scheduler/baselines/queue.hpp"
#include "state.hpp"

namespace tidegrid::fast {

// Legal plans to start from. Those of the baselines come with their apps: the search's own may serve them worse.
struct Starts {
    std::vector<Start> starts;
    std::vector<queue::Cells> cells;  // GPUs that apps hold, listed as in the problem
    std::vector<Int> cells_of;        // by start: its cells; -1: none
};

Starts baseline_starts(const tg_problem& in, const Board& b);

// How many of a job's GPUs lie on each bin.
Pieces pieces_on(const Board& b, Int pool, std::span<const Int> gpus);

// Make the apps of a baseline those of the plan at hand: `s.cells`, `s.held_seats`, `s.stays`, and the app of the board
// on each GPU and step in `owners`.
void hold_as(const Board& b, State& s, const queue::Cells& cells, std::int32_t* owners,
             const std::vector<Int>& owner_at);

}  // namespace tidegrid::fast
