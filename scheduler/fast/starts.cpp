#include "starts.hpp"

#include <map>

namespace tidegrid::fast {

namespace {

using queue::Cells;
using queue::Gpus;
using queue::Mode;

// By whether apps follow their demand.
const std::vector<Mode> kModes[] = {
    {Mode::fifo, Mode::fifo_backfill, Mode::easy, Mode::priority, Mode::easy_priority, Mode::sjf}, {Mode::fifo_elastic}};

// Replicas that an app holds in a step, and since when they are up.
std::map<Gpus, Int> replicas_at(const Gpus& cell, Int size) {
    std::map<Gpus, Int> found;
    for (auto at = cell.begin(); at != cell.end(); at += size) found[Gpus(at, at + size)] = -1;
    return found;
}

// What is short, and what enters, within the horizon.
double charge(const tg_problem& in, const Board& b, const Cells& cells) {
    double total = 0.0;
    for (Int i = 0; i < in.apps; ++i) {
        const Int a = b.app_of[i], size = in.app_replica[a];
        for (Int t = 0; t < in.steps; ++t) total += app_cost(b, i, t, Int(cells[a][t].size()));
        if (b.app[i].swap_price == 0.0) continue;
        auto before = replicas_at(b.replicas[i], size);
        for (Int t = 0; t < in.steps; ++t) {
            auto now = replicas_at(cells[a][t], size);
            for (const auto& [replica, _] : now)
                if (!before.contains(replica)) total += b.app[i].swap_price * b.weight[t] * double(size);
            before = std::move(now);
        }
    }
    return total;
}

// The replicas of an app on the board, each from the step in which it enters to that in which it leaves.
void list_stays(const Board& b, State& s, Int i, Int p, const std::vector<Gpus>& cells) {
    const Int size = b.app[i].replica;
    std::map<Gpus, Int> here;  // where its stay is listed
    const auto enter = [&](const Gpus& replica, Int from, Int held) {
        s.stays.push_back({i, from, b.steps, held, pieces_on(b, p, replica)});
        return Int(s.stays.size()) - 1;
    };
    for (Int k = 0; k < Int(b.replicas[i].size()); k += size) {
        const Gpus replica(b.replicas[i].begin() + k, b.replicas[i].begin() + k + size);
        here[replica] = enter(replica, -1, k / size);
    }
    for (Int t = 0; t < b.steps; ++t) {
        auto now = replicas_at(cells[t], size);
        for (const auto& [replica, at] : here)
            if (const auto found = now.find(replica); found != now.end())
                found->second = at;
            else
                s.stays[at].until = t;
        for (auto& [replica, at] : now)
            if (at < 0) at = enter(replica, t, -1);
        here = std::move(now);
    }
}

}  // namespace

Pieces pieces_on(const Board& b, Int pool, std::span<const Int> gpus) {
    std::map<Int, Int> bins;
    for (Int g : gpus) ++bins[b.gpu_bin[b.gpu_at[pool] + g]];
    Pieces pieces;
    for (const auto& [bin, many] : bins) pieces.push_back({bin, many});
    return pieces;
}

Starts baseline_starts(const tg_problem& in, const Board& b) {
    Starts result;
    for (bool elastic : {false, true}) {
        const Cells& cells = result.cells.emplace_back(queue::hold(in, elastic));
        const double charged = charge(in, b, cells);
        for (const auto& placed : queue::serve(in, cells, kModes[elastic], b.steps)) {
            Start start{std::vector<Spot>(b.job.size()), std::vector<Pieces>(b.job.size()), charged};
            for (Int i = 0; i < Int(b.job.size()); ++i) {
                const queue::Placed& place = placed[b.job[i].original];
                if (place.start < 0 || place.start >= b.steps) continue;
                const Int k = b.shape_of[place.shape], p = b.shape[k].pool;
                start.spots[i] = {k, place.start, place.gpus.front()};
                if (b.pool[p].by_node) start.pieces[i] = pieces_on(b, p, place.gpus);
            }
            result.starts.push_back(std::move(start));
            result.cells_of.push_back(elastic);
        }
    }
    return result;
}

void hold_as(const Board& b, State& s, const Cells& cells, std::int32_t* owners,
             const std::vector<Int>& owner_at) {
    std::fill(s.cells.begin(), s.cells.end(), 0);
    std::fill(s.held_seats.begin(), s.held_seats.end(), Seats(0));
    std::fill_n(owners, owner_at.back(), -1);
    std::fill(s.kept.begin(), s.kept.end(), 0);
    s.stays.clear();
    for (Int p = 0; p < Int(b.pool.size()); ++p) {
        const Pool& pool = b.pool[p];
        for (Int i = pool.app_first; i < pool.app_last; ++i) {
            const auto& mine = cells[b.app_of[i]];
            if (pool.binned() && pool.named) list_stays(b, s, i, p, mine);
            for (Int t = 0; t < b.steps; ++t)
                for (Int g : mine[t]) {
                    if (!pool.by_node) {
                        fill(s.cells.data() + pool.row + t * pool.words, g, 1);
                        owners[owner_at[p] + g * b.steps + t] = std::int32_t(i);
                    } else if (b.app[i].cap > 0) {
                        ++s.held_seats[pool.seat + t * pool.bins + b.gpu_bin[b.gpu_at[p] + g]];
                    }
                    s.kept[p * b.steps + t] += !pool.by_node || b.app[i].cap > 0;
                }
        }
    }
}

}  // namespace tidegrid::fast
