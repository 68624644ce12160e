// What the baselines do, as starts of the search.
#pragma once

#include "state.hpp"

namespace tidegrid::fast {

// A baseline's jobs on the board, and its apps: the app of the problem on each step and GPU of the line of all pools.
struct QueueStarts {
    std::vector<Start> starts;
    std::vector<std::vector<std::int32_t>> owners;
    std::vector<Int> owner_of;  // by start
    std::vector<Int> offset;    // (P + 1) where the problem's pools begin on the line
};

QueueStarts queue_starts(const tg_problem& in, const Board& b);

}  // namespace tidegrid::fast
