#include "queue.hpp"

#include <map>
#include <numeric>
#include <queue>

#include "native.hpp"

namespace tidegrid::queue {

namespace {

// Slurm's multifactor plugin: a job's age counts in full at PriorityMaxAge, seven days where a site sets none.
constexpr double kMaxAgeMinutes = 7 * 24 * 60;

// What counts against the limits of tenants and groups, from step 0 on.
class Limits {
  public:
    explicit Limits(const tg_problem& in) : in_(in), used_(in.limits, {{0, 0}}) {
        for (Int j = 0; j < in.jobs; ++j)
            if (in.run_pool[j] >= 0) add(j, in.run_pool[j], in.run_start[j + 1] - in.run_start[j], 0, in.run_steps[j]);
    }

    // Count a job from a step to another; `sign` -1: no more.
    void add(Int job, Int pool, Int gpus, Int start, Int end, Int sign = 1) {
        for (Int i = in_.limit_start[job]; i < in_.limit_start[job + 1]; ++i) {
            const Int k = in_.limit[i], more = weight(k, pool, gpus);
            if (more == 0) continue;
            std::size_t first = split(used_[k], start), last = split(used_[k], end);
            for (; first < last; ++first) used_[k][first].second += sign * more;
        }
    }

    // First step from `from` on at which every limit lets a job on; kNever: none.
    Int next(Int job, const Task& task, Int from) const {
        for (bool moved = true; moved && from < kNever;) {
            moved = false;
            for (Int i = in_.limit_start[job]; i < in_.limit_start[job + 1]; ++i) {
                const Int k = in_.limit[i], more = weight(k, task.pool, task.gpus);
                if (more == 0) continue;
                const Profile& used = used_[k];
                for (std::size_t r = used.size(); r-- > 0;) {
                    const Int end = r + 1 < used.size() ? used[r + 1].first : kNever;
                    if (end <= from) break;
                    if (used[r].first < from + task.steps && used[r].second + more > in_.limit_most[k]) {
                        from = end;
                        moved = true;
                        break;
                    }
                }
            }
        }
        return from;
    }

  private:
    using Profile = std::vector<std::pair<Int, Int>>;  // from a step on, what is used; the last for ever

    Int weight(Int k, Int pool, Int gpus) const {
        if (in_.limit_pool[k] >= 0 && in_.limit_pool[k] != pool) return 0;
        return in_.limit_gpus[k] ? gpus : 1;
    }

    static std::size_t split(Profile& used, Int step) {
        std::size_t r = 0;
        while (r < used.size() && used[r].first < step) ++r;
        if (r == used.size() || used[r].first != step) used.insert(used.begin() + Int(r), {step, used[r - 1].second});
        return r;
    }

    const tg_problem& in_;
    std::vector<Profile> used_;
};

// The size that was asked for, or the largest shape that fits its pool.
std::vector<Task> tasks_of(const tg_problem& in, const std::vector<Timeline>& pools) {
    std::vector<Task> tasks(in.jobs);
    std::map<std::tuple<Int, Int, Int>, bool> found;  // whether the empty pool has room
    const auto known = [&](const auto& key, auto holds) {
        const auto [at, fresh] = found.try_emplace(key, false);
        if (fresh) at->second = holds();
        return at->second;
    };
    for (Int j = 0; j < in.jobs; ++j) {
        Int low = in.shape_start[j], high = in.shape_start[j + 1];
        if (in.requested[j] >= 0) {
            low += in.requested[j];
            high = std::min(high, low + 1);
        }
        Task& chosen = tasks[j];
        for (Int s = low; s < high; ++s) {
            Task task{s, in.shape_pool[s], in.shape_gpus[s], in.shape_steps[s], in.shape_nodes[s], in.earliest[j],
                      in.latest_end[j], {}};
            for (Int w = in.within_start[s]; w < in.within_start[s + 1]; ++w) {
                task.within.resize((in.pool_gpus[task.pool] + 63) / 64, 0);
                const Int first = in.within[2 * w], size = std::min(in.within[2 * w + 1], in.pool_gpus[task.pool] - first);
                if (size > 0) fast::fill(task.within.data(), first, size);
            }
            const auto key = [](const Task& one) { return std::pair(one.gpus, -one.steps); };
            if (chosen.shape >= 0 && key(task) <= key(chosen)) continue;
            const auto holds = [&] { return pools[task.pool].holds(task); };
            if (!task.within.empty() ? holds() : known(std::tuple(task.pool, task.gpus, task.nodes), holds))
                chosen = std::move(task);
        }
    }
    return tasks;
}

std::vector<Int> order_of(const tg_problem& in, const std::vector<Task>& tasks, Mode mode) {
    std::vector<Int> order(in.jobs);
    for (Int j = 0; j < in.jobs; ++j) order[in.rank[j]] = j;
    const auto sort = [&](auto key) {
        std::stable_sort(order.begin(), order.end(), [&](Int i, Int j) { return key(i) < key(j); });
    };
    if (mode == Mode::priority) sort([&](Int j) { return -in.priority[j]; });
    if (mode == Mode::sjf) sort([&](Int j) { return tasks[j].steps; });
    if (mode == Mode::easy_priority) {
        double highest = 1.0;
        for (Int j = 0; j < in.jobs; ++j) highest = std::max(highest, in.priority[j]);
        // All who wait age alike, so what tells them apart is when they came: the order never changes.
        const double aging = in.step_minutes / kMaxAgeMinutes;
        sort([&](Int j) { return aging * double(in.earliest[j]) - in.priority[j] / highest; });
    }
    return order;
}

// Jobs for which a search has failed, or found its first place late: a job that asks for as much or more finds none
// earlier.
class Searched {
  public:
    // Latest step of the searches of jobs that asked for no more; `none` where there is none.
    Int bound(const Task& task, Int none) const {
        Int latest = none;
        for (const Entry& e : entries_)
            if (e.per_node <= task.per_node() && e.nodes <= task.nodes && e.steps <= task.steps) latest = std::max(latest, e.step);
        return latest;
    }

    void add(const Task& task, Int step) {
        if (!task.within.empty()) return;  // others may use other GPUs
        const Entry made{task.per_node(), task.nodes, task.steps, step};
        std::erase_if(entries_, [&](const Entry& e) {
            return e.per_node >= made.per_node && e.nodes >= made.nodes && e.steps >= made.steps && e.step <= step;
        });
        entries_.push_back(made);
    }

    void clear() { entries_.clear(); }

  private:
    struct Entry {
        Int per_node, nodes, steps, step;
    };
    std::vector<Entry> entries_;
};

struct Queue {
    const tg_problem& in;
    std::vector<Timeline> pools;
    Limits limits;
    std::vector<Task> tasks;
    std::vector<Placed> placed;
    Int until;

    void put(Int j, Int start, Gpus gpus) {
        const Task& task = tasks[j];
        pools[task.pool].take(gpus, start, start + task.steps);
        limits.add(j, task.pool, task.gpus, start, start + task.steps);
        placed[j] = {task.shape, start, std::move(gpus)};
    }

    // First step at which the jobs that must have ended let one start; -1: one of them has no place.
    Int ready(Int j) const {
        Int step = tasks[j].earliest;
        for (Int i = in.after_start[j]; i < in.after_start[j + 1]; ++i) {
            const Int k = in.after[i];
            if (in.run_pool[k] < 0 && placed[k].start < 0) return -1;
            step = std::max(step, in.run_pool[k] >= 0 ? in.run_steps[k] : placed[k].start + tasks[k].steps);
        }
        return step;
    }

    // First step from `from` on at which GPUs and limits let a job start, and its GPUs; -1: none.
    Int first(Int j, Int from, Gpus& gpus) const {
        for (Int start = from;;) {
            start = pools[tasks[j].pool].earliest(tasks[j], start, gpus);
            const Int allowed = start < 0 ? start : limits.next(j, tasks[j], start);
            if (allowed == start) return start;
            if (allowed >= kNever) return -1;
            start = allowed;
        }
    }

    // Each job in turn chooses the earliest place, none before those that it waits for; `keep_order`: none starts
    // before one that chose before it in its pool.
    void in_order(const std::vector<Int>& order, bool keep_order) {
        std::vector<Int> missing(in.jobs, 0), place(in.jobs), last(in.pools, 0);
        std::vector<std::vector<Int>> followers(in.jobs);
        std::priority_queue<Int, std::vector<Int>, std::greater<>> next;  // places in the order
        for (Int k = 0; k < in.jobs; ++k) place[order[k]] = k;
        for (Int j : order) {
            for (Int i = in.after_start[j]; i < in.after_start[j + 1]; ++i)
                if (in.run_pool[in.after[i]] < 0) {
                    followers[in.after[i]].push_back(j);
                    ++missing[j];
                }
            if (missing[j] == 0) next.push(place[j]);
        }
        std::vector<Searched> searched(in.pools);
        while (!next.empty()) {
            const Int j = order[next.top()];
            next.pop();
            if (tasks[j].shape >= 0) choose(j, keep_order, last[tasks[j].pool], searched[tasks[j].pool]);
            for (Int k : followers[j])
                if (--missing[k] == 0) next.push(place[k]);
        }
    }

    void choose(Int j, bool keep_order, Int& last, Searched& searched) {
        const Task& task = tasks[j];
        const Timeline& pool = pools[task.pool];
        const Int from = ready(j), bound = std::max(searched.bound(task, 0), keep_order ? last : 0);
        if (from < 0 || (keep_order && last >= until && in.limits == 0)) return;
        Gpus gpus;
        // Who is held back by a limit or by another job alone holds up nobody: what counts is when there are GPUs.
        const Int there = pool.earliest(task, std::max(task.earliest, bound), gpus);
        if (there < 0) return;
        if (task.earliest <= bound && !keep_order) searched.add(task, there);
        const Int start = first(j, std::max(from, there), gpus);
        if (start < 0) return;
        last = std::max(last, there);
        put(j, start, std::move(gpus));
    }

    // EASY backfill: the first job of a pool that waits for GPUs has a reservation, no other has.
    void easy(const std::vector<Int>& order) {
        std::vector<Int> waiting, reserving;
        for (Int j : order)
            if (tasks[j].shape >= 0) waiting.push_back(j);
        std::vector<Searched> failed(in.pools);
        std::vector<Reservation> reserved(in.pools);
        for (Int t = 0; t < until && !waiting.empty(); t = next_event(t, waiting)) {
            for (Int p = 0; p < in.pools; ++p) {
                failed[p].clear();
                reserved[p] = {};
            }
            reserving.clear();
            for (Int j : waiting) {
                const Task& task = tasks[j];
                if (task.earliest > t || t + task.steps > task.latest_end) continue;
                const Timeline& pool = pools[task.pool];
                Reservation& kept = reserved[task.pool];
                const Int free = pool.free_at(t);
                if (free < task.gpus && kept.start >= 0) continue;
                const Int from = ready(j);
                if (from < 0 || from > t || limits.next(j, task, t) > t) continue;
                Gpus gpus;
                if (free >= task.gpus && failed[task.pool].bound(task, -1) < 0) {
                    if (pool.fits(task, t, &kept, gpus)) {
                        put(j, t, std::move(gpus));
                        continue;
                    }
                    failed[task.pool].add(task, t);
                }
                if (kept.start >= 0) continue;
                if (const Int start = first(j, t + 1, gpus); start >= 0) {
                    kept = {start, pool.set_of(gpus)};
                    limits.add(j, task.pool, task.gpus, start, start + task.steps);
                    reserving.push_back(j);
                }
            }
            for (Int j : reserving) {
                const Int start = reserved[tasks[j].pool].start;
                limits.add(j, tasks[j].pool, tasks[j].gpus, start, start + tasks[j].steps, -1);
            }
            std::erase_if(waiting, [&](Int j) { return placed[j].start >= 0 || t + tasks[j].steps > tasks[j].latest_end; });
        }
    }

    Int next_event(Int t, const std::vector<Int>& waiting) const {
        Int next = kNever;
        for (const Timeline& pool : pools) next = std::min(next, pool.next_change(t));
        for (Int j : waiting)
            if (tasks[j].earliest > t) next = std::min(next, tasks[j].earliest);
        return next;
    }
};

}  // namespace

std::vector<std::vector<Placed>> serve(const tg_problem& in, const Cells& cells, std::span<const Mode> modes, Int until) {
    std::vector<Timeline> pools;
    for (Int p = 0; p < in.pools; ++p) pools.emplace_back(in, p);
    Queue first{in, {}, Limits(in), tasks_of(in, pools), std::vector<Placed>(in.jobs), until};
    for (Int j = 0; j < in.jobs; ++j)
        if (in.run_pool[j] >= 0)
            pools[in.run_pool[j]].take({in.run_gpu + in.run_start[j], in.run_gpu + in.run_start[j + 1]}, 0, in.run_steps[j]);
    for (Int a = 0; a < in.apps; ++a)
        for (Int t = 0; t < in.steps;) {
            Int end = t + 1;
            while (end < in.steps && cells[a][end] == cells[a][t]) ++end;
            // past the horizon an app keeps what it holds in the last step
            pools[in.app_pool[a]].take(cells[a][t], t, end < in.steps ? end : kNever);
            t = end;
        }
    first.pools = std::move(pools);
    std::vector<std::vector<Placed>> result;
    for (Mode mode : modes) {
        Queue queue = first;
        const std::vector<Int> order = order_of(in, queue.tasks, mode);
        if (mode == Mode::easy || mode == Mode::easy_priority)
            queue.easy(order);
        else
            queue.in_order(order, mode == Mode::fifo || mode == Mode::fifo_elastic);
        result.push_back(std::move(queue.placed));
    }
    return result;
}

}  // namespace tidegrid::queue

extern "C" {

// The plan of a queue: for each job its shape and start (-1: none; from the horizon on: a reservation past it) and its
// GPUs, for each app and step its GPUs. False where an array has not the size of the problem, or too little room.
[[gnu::visibility("default")]] bool tg_queue_plan(const tg_problem* in, std::int64_t mode, tidegrid::Array<std::int64_t> shape,
                                                  tidegrid::Array<std::int64_t> start, tidegrid::Array<std::int64_t> gpus_start,
                                                  tidegrid::Array<std::int64_t> gpus, tidegrid::Array<std::int64_t> cells_start,
                                                  tidegrid::Array<std::int64_t> cells) {
    using namespace tidegrid::queue;
    if (mode < 0 || mode > 6 || shape.size != in->jobs || start.size != in->jobs || gpus_start.size != in->jobs + 1 ||
        cells_start.size != in->apps * in->steps + 1)
        return false;
    const Cells held = hold(*in, Mode(mode) == Mode::fifo_elastic);
    const Mode modes[] = {Mode(mode)};
    const std::vector<Placed> placed = serve(*in, held, modes, kNever).front();
    Int at = 0;
    for (Int j = 0; j < in->jobs; ++j) {
        shape.data[j] = placed[j].shape;
        start.data[j] = placed[j].start;
        gpus_start.data[j] = at;
        if (at + Int(placed[j].gpus.size()) > gpus.size) return false;
        for (Int g : placed[j].gpus) gpus.data[at++] = g;
    }
    gpus_start.data[in->jobs] = at;
    at = 0;
    for (Int a = 0; a < in->apps; ++a)
        for (Int t = 0; t < in->steps; ++t) {
            cells_start.data[a * in->steps + t] = at;
            if (at + Int(held[a][t].size()) > cells.size) return false;
            for (Int g : held[a][t]) cells.data[at++] = g;
        }
    cells_start.data[in->apps * in->steps] = at;
    return true;
}

}  // extern "C"
