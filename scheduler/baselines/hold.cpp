// Realtime without a planner: each app holds a level that is fixed beforehand, step by step, legally.

#include <numeric>

#include "queue.hpp"

namespace tidegrid::queue {

namespace {

// Replicas that hold an app's peak of the horizon in every step (what a first-in-first-out cluster must reserve,
// since it cannot free a GPU in a valley and get it back for the next peak), or that follow demand, risen early where
// the swap cap is too slow for a climb; never less than the floor.
std::vector<Int> levels(const tg_problem& in, Int a, Int moves, bool elastic) {
    const Int replica = in.app_replica[a];
    const Int* demand = in.demand + a * in.width;
    std::vector<Int> level(in.steps);
    for (Int t = 0; t < in.steps; ++t) level[t] = (std::max(demand[t], in.app_floor[a]) + replica - 1) / replica;
    if (!elastic) std::fill(level.begin(), level.end(), *std::max_element(level.begin(), level.end()));
    if (elastic)
        for (Int t = in.steps - 2; t >= 0; --t) level[t] = std::max(level[t], level[t + 1] - moves);
    return level;
}

struct Pool {
    std::vector<char> taken;      // by an app
    std::vector<Int> busy_until;  // by a running job
};

struct Realtime {
    const tg_problem& in;
    std::vector<Pool> pools;
    std::vector<std::vector<Gpus>> held;  // by app: replicas

    bool down(Int pool, Int gpu, Int from, Int until) const {
        for (Int c = 0; c < in.closed; ++c) {
            const Int* at = in.closed_at + 6 * c;
            if (at[5] && at[0] == pool && at[1] <= gpu && gpu < at[2] && at[3] < until && from < at[4]) return true;
        }
        return false;
    }

    bool may_enter(Int pool, Int gpu, Int t) const {
        if (pools[pool].taken[gpu] || pools[pool].busy_until[gpu] > t) return false;
        for (Int c = 0; c < in.closed; ++c) {
            const Int* at = in.closed_at + 6 * c;
            if (at[0] == pool && at[1] <= gpu && gpu < at[2] && at[3] <= t && t < at[4]) return false;
        }
        return true;
    }

    void leave(Int a, Int k) {
        for (Int g : held[a][k]) pools[in.app_pool[a]].taken[g] = 0;
        held[a].erase(held[a].begin() + k);
    }

    // GPUs for one more replica: the highest that are free, by node on the nodes with the fewest that suffice. GPUs that
    // stay open to the horizon (`lasting`) are better than those that the app would soon have to leave.
    Gpus room(Int a, Int t, bool lasting) const {
        const Int p = in.app_pool[a], total = in.pool_gpus[p], replica = in.app_replica[a];
        const Int node = in.pool_node[p] > 0 ? in.pool_node[p] : total;
        const Int nodes = std::max<Int>(1, replica / node), per = replica / nodes;
        const auto good = [&](Int g) { return may_enter(p, g, t) && !(lasting && down(p, g, t, in.steps)); };
        std::vector<std::pair<Int, Int>> there;  // free GPUs, and the first one counted from the top
        for (Int low = (total - 1) / node * node; low >= 0; low -= node) {
            Int free = 0;
            for (Int g = low; g < std::min(low + node, total); ++g) free += good(g);
            if (free < per) continue;
            there.emplace_back(in.pool_by_node[p] ? free : 0, -low);
            if (!in.pool_by_node[p] && Int(there.size()) == nodes) break;  // the highest that suffice
        }
        Gpus found;
        if (Int(there.size()) < nodes) return found;
        std::sort(there.begin(), there.end());
        for (Int k = 0; k < nodes; ++k) {
            const Int low = -there[k].second;
            for (Int g = std::min(low + node, total) - 1, left = per; left > 0; --g)
                if (good(g)) {
                    found.push_back(g);
                    --left;
                }
        }
        std::sort(found.begin(), found.end());
        return found;
    }
};

}  // namespace

Cells hold(const tg_problem& in, bool elastic) {
    Realtime now{in, std::vector<Pool>(in.pools), std::vector<std::vector<Gpus>>(in.apps)};
    for (Int p = 0; p < in.pools; ++p) now.pools[p] = {std::vector<char>(in.pool_gpus[p]), std::vector<Int>(in.pool_gpus[p])};
    for (Int j = 0; j < in.jobs; ++j)
        for (Int i = in.run_start[j]; in.run_pool[j] >= 0 && i < in.run_start[j + 1]; ++i)
            now.pools[in.run_pool[j]].busy_until[in.run_gpu[i]] = in.run_steps[j];
    std::vector<Int> turn(in.apps), moves(in.apps);
    std::vector<std::vector<Int>> level(in.apps);
    std::iota(turn.begin(), turn.end(), 0);
    std::stable_sort(turn.begin(), turn.end(), [&](Int a, Int c) { return in.app_priority[a] > in.app_priority[c]; });
    for (Int a = 0; a < in.apps; ++a) {
        const Int replica = in.app_replica[a];
        moves[a] = in.app_cap[a] < 0 ? kNever : in.app_cap[a] / replica;
        level[a] = levels(in, a, moves[a], elastic);
        for (Int k = in.held_start[a]; k < in.held_start[a + 1]; k += replica)
            now.held[a].emplace_back(in.held + k, in.held + k + replica);
        std::sort(now.held[a].begin(), now.held[a].end());
        for (const Gpus& one : now.held[a])
            for (Int g : one) now.pools[in.app_pool[a]].taken[g] = 1;
    }
    Cells cells(in.apps, std::vector<Gpus>(in.steps));
    for (Int t = 0; t < in.steps; ++t) {
        std::vector<Int> left = moves;
        for (Int a : turn) {  // what must leave, and what is not wanted: another may take it in the same step
            std::vector<Gpus>& held = now.held[a];
            const auto forced = [&](Int g) { return now.down(in.app_pool[a], g, t, t + 1); };
            for (Int k = Int(held.size()) - 1; k >= 0; --k)
                if (std::any_of(held[k].begin(), held[k].end(), forced)) now.leave(a, k);
            for (; Int(held.size()) > level[a][t] && left[a] > 0; --left[a]) now.leave(a, 0);
        }
        for (bool floor : {true, false})
            for (Int a : turn) {
                const Int replica = in.app_replica[a];
                const Int goal = floor ? (in.app_floor[a] + replica - 1) / replica : level[a][t];
                while (Int(now.held[a].size()) < goal && left[a] > 0) {
                    Gpus one = now.room(a, t, true);
                    if (one.empty() && in.closed > 0) one = now.room(a, t, false);
                    if (one.empty()) break;
                    for (Int g : one) now.pools[in.app_pool[a]].taken[g] = 1;
                    now.held[a].insert(std::lower_bound(now.held[a].begin(), now.held[a].end(), one), one);
                    --left[a];
                }
            }
        for (Int a = 0; a < in.apps; ++a)
            for (const Gpus& one : now.held[a]) cells[a][t].insert(cells[a][t].end(), one.begin(), one.end());
    }
    return cells;
}

}  // namespace tidegrid::queue
