// Queues as clusters run them: jobs in an order, each with one shape, at the earliest place that its queue allows.
#pragma once

#include <span>

#include "timeline.hpp"

namespace tidegrid::queue {

enum class Mode { fifo, fifo_backfill, easy, priority, easy_priority, sjf, fifo_elastic };

struct Placed {
    Int shape = -1, start = -1;  // start -1: no place; from the horizon on: a reservation past it
    Gpus gpus;
};

// GPUs that each app holds in each step, replica after replica.
using Cells = std::vector<std::vector<Gpus>>;

// Realtime without a planner: each app is brought as near as legal to its peak, or where `elastic` to its demand.
Cells hold(const tg_problem& in, bool elastic);

// Where each job goes under each of some queues, all with the same apps. What starts at `until` or later may be left
// out where it changes nothing before.
std::vector<std::vector<Placed>> serve(const tg_problem& in, const Cells& cells, std::span<const Mode> modes, Int until);

}  // namespace tidegrid::queue
