#include "queue.hpp"

#include <numeric>

namespace tidegrid::fast {

namespace {

constexpr Int kNever = Int{1} << 40;
// Slurm's multifactor plugin: a job's age counts in full at PriorityMaxAge, seven days where a site sets none.
constexpr double kMaxAgeMinutes = 7 * 24 * 60;

// A job with the one shape that a baseline gives it; pool -1: it has no place.
struct Task {
    Int pool = -1, gpus = 0, steps = 0, earliest = 0, latest_end = 0;
};

struct Placed {
    Int start = -1, first = -1;
};

using Owners = std::vector<std::int32_t>;

// Free GPUs over the horizon, pools side by side on one line.
struct Line {
    const tg_problem& in;
    const std::vector<Int>& offset;
    std::vector<std::int32_t> run;  // (T, G) steps for which a GPU stays free from a step on
    std::vector<Int> free;          // (T, P)

    Int gpus() const { return offset.back(); }

    void reset(const Owners& owner) {
        const Int total = gpus(), steps = in.steps;
        std::vector<Int> busy_until(total, 0);
        for (Int j = 0; j < in.jobs; ++j)
            for (Int i = in.run_start[j]; in.run_pool[j] >= 0 && i < in.run_start[j + 1]; ++i)
                busy_until[offset[in.run_pool[j]] + in.run_gpu[i]] = in.run_steps[j];
        run.assign(steps * total, 0);
        free.assign(steps * in.pools, 0);
        for (Int t = steps - 1; t >= 0; --t)
            for (Int p = 0; p < in.pools; ++p)
                for (Int g = offset[p]; g < offset[p + 1]; ++g) {
                    if (owner[t * total + g] >= 0 || t < busy_until[g]) continue;
                    run[t * total + g] = 1 + (t + 1 < steps ? run[(t + 1) * total + g] : 0);
                    ++free[t * in.pools + p];
                }
    }

    // Lowest first GPU of a legal block that is free for `need` steps; -1 for none. GPUs from `bar_low` to `bar_high`
    // count as free for `bar` steps at most.
    Int fit(Int t, Int p, Int size, Int need, Int bar = 0, Int bar_low = 0, Int bar_high = 0) const {
        const std::int32_t* row = run.data() + t * gpus();
        const Int low = offset[p], node = in.pool_node[p];
        const bool inside = node > 0 && size <= node;
        Int count = 0, left = inside ? 0 : kNever;
        for (Int g = low; g < offset[p + 1]; ++g, --left) {
            if (left == 0) {
                count = 0;
                left = node;
            }
            if (row[g] < need || (bar_low <= g && g < bar_high && bar < need)) {
                count = 0;
                continue;
            }
            ++count;
            const Int first = g - size + 1;
            if (count >= size && (node == 0 || inside || (first - low) % node == 0)) return first;
        }
        return -1;
    }

    void occupy(Int p, Int first, Int size, Int start, Int length) {
        const Int total = gpus();
        for (Int t = start; t < std::min(start + length, in.steps); ++t) {
            free[t * in.pools + p] -= size;
            std::fill_n(run.begin() + t * total + first, size, 0);
        }
        for (Int g = first; g < first + size; ++g)
            for (Int t = start - 1; t >= 0 && run[t * total + g] > 0; --t) run[t * total + g] = std::int32_t(start - t);
    }

    Placed earliest(const Task& task, Int from) const {
        for (Int t = from; t < in.steps && t + task.steps <= task.latest_end; ++t) {
            if (free[t * in.pools + task.pool] < task.gpus) continue;
            const Int g = fit(t, task.pool, task.gpus, std::min(task.steps, in.steps - t));
            if (g >= 0) return {t, g};
        }
        return {};
    }

    // Give each job in turn its earliest legal place, on the lowest GPU; where `keep_order`, none starts before the
    // one that chose before it.
    std::vector<Placed> in_order(const std::vector<Task>& tasks, const std::vector<Int>& order, bool keep_order) {
        std::vector<Placed> found(tasks.size());
        const Int steps = in.steps;
        // Earliest places only move later as the board fills: the last one found bounds the next search. By pool,
        // width (its logarithm, rounded up where a search is remembered, down where it is used), length.
        std::vector<std::int32_t> bound(in.pools * 64 * (steps + 1), 0);
        Int last = 0;
        for (Int j : order) {
            const Task& task = tasks[j];
            if (task.pool < 0) continue;
            const Int need = std::min(task.steps, steps), log = std::bit_width(Word(task.gpus)) - 1;
            std::int32_t* mine = bound.data() + (task.pool * 64 + log) * (steps + 1);
            const Int from = std::max({task.earliest, keep_order ? last : 0, Int(mine[need])});
            const Placed place = earliest(task, from);
            if (place.start < 0) continue;
            found[j] = place;
            last = place.start;
            occupy(task.pool, place.first, task.gpus, place.start, task.steps);
            if (from == mine[need] && Int{1} << log == task.gpus)
                for (Int k = need; k <= steps; ++k) mine[k] = std::max(mine[k], std::int32_t(place.start));
        }
        return found;
    }

    // EASY backfill step by step: the first blocked job of a pool has a reservation, no other has.
    std::vector<Placed> easy(const std::vector<Task>& tasks, const std::vector<Int>& order) {
        struct Bar {
            Int start = -1, first = 0, gpus = 0;
        };
        std::vector<Placed> found(tasks.size());
        // What did not fit in this step: the shortest need that failed, by pool and width's logarithm.
        std::vector<Int> failed(in.pools * 64);
        std::vector<Bar> bars(in.pools);
        for (Int t = 0; t < in.steps; ++t) {
            std::fill(failed.begin(), failed.end(), kNever);
            std::fill(bars.begin(), bars.end(), Bar{});
            for (Int j : order) {
                const Task& task = tasks[j];
                const Int p = task.pool;
                if (p < 0 || found[j].start >= 0 || task.earliest > t || t + task.steps > task.latest_end) continue;
                Bar& bar = bars[p];
                const Int free_now = free[t * in.pools + p];
                if (free_now <= 0 && bar.start != -1) continue;
                const Int need = std::min(task.steps, in.steps - t), log = std::bit_width(Word(task.gpus)) - 1;
                bool possible = free_now >= task.gpus;
                for (Int k = 0; k <= log; ++k) possible = possible && failed[p * 64 + k] > need;
                Int g = -1;
                if (possible && bar.start > 0)
                    g = fit(t, p, task.gpus, need, bar.start - t, bar.first, bar.first + bar.gpus);
                else if (possible)
                    g = fit(t, p, task.gpus, need);
                if (g >= 0) {
                    found[j] = {t, g};
                    occupy(p, g, task.gpus, t, task.steps);
                    continue;
                }
                if (Int{1} << log == task.gpus) failed[p * 64 + log] = std::min(failed[p * 64 + log], need);
                if (bar.start == -1)
                    if (const Placed place = earliest(task, t + 1); place.start >= 0)
                        bar = {place.start, place.first, task.gpus};
            }
        }
        return found;
    }
};

// Name the GPUs that bring each app as near to its level as held GPUs, running jobs and caps allow: apps of higher
// priority first; an app takes the highest free index and gives back its lowest, so that its set nests.
Owners hold(const tg_problem& in, const std::vector<Int>& offset, const std::vector<Int>& level) {
    const Int total = offset.back();
    std::vector<std::int32_t> now(total, -1);
    std::vector<Int> busy_until(total, 0), size(in.apps), turn(in.apps);
    for (Int a = 0; a < in.apps; ++a) {
        for (Int k = in.held_start[a]; k < in.held_start[a + 1]; ++k)
            now[offset[in.app_pool[a]] + in.held[k]] = std::int32_t(a);
        size[a] = in.held_start[a + 1] - in.held_start[a];
    }
    for (Int j = 0; j < in.jobs; ++j)
        for (Int i = in.run_start[j]; in.run_pool[j] >= 0 && i < in.run_start[j + 1]; ++i)
            busy_until[offset[in.run_pool[j]] + in.run_gpu[i]] = in.run_steps[j];
    std::iota(turn.begin(), turn.end(), 0);
    std::stable_sort(turn.begin(), turn.end(), [&](Int a, Int c) { return in.app_priority[a] > in.app_priority[c]; });
    Owners out(in.steps * total);
    const auto moves = [&](Int a, Int wish) { return in.app_cap[a] >= 0 ? std::min(wish, in.app_cap[a]) : wish; };
    for (Int t = 0; t < in.steps; ++t) {
        for (Int a : turn) {  // give back first: what one app frees another may take in the same step
            Int extra = moves(a, size[a] - level[a * in.steps + t]);
            for (Int g = offset[in.app_pool[a]]; extra > 0; ++g) {
                if (now[g] != a) continue;
                now[g] = -1;
                --size[a];
                --extra;
            }
        }
        for (Int a : turn) {
            Int lack = moves(a, level[a * in.steps + t] - size[a]);
            for (Int g = offset[in.app_pool[a] + 1] - 1; lack > 0 && g >= offset[in.app_pool[a]]; --g) {
                if (now[g] >= 0 || busy_until[g] > t) continue;
                now[g] = std::int32_t(a);
                ++size[a];
                --lack;
            }
        }
        std::copy(now.begin(), now.end(), out.begin() + t * total);
    }
    return out;
}

// Levels that hold each app's peak of the horizon in every step, or follow demand, risen early where the swap cap
// is too slow for a climb.
std::vector<Int> levels(const tg_problem& in, bool elastic) {
    std::vector<Int> level(in.apps * in.steps);
    for (Int a = 0; a < in.apps; ++a) {
        const Int* demand = in.demand + a * in.width;
        Int* mine = level.data() + a * in.steps;
        std::copy_n(demand, in.steps, mine);
        if (!elastic) std::fill_n(mine, in.steps, *std::max_element(demand, demand + in.steps));
        if (elastic && in.app_cap[a] >= 0)
            for (Int t = in.steps - 2; t >= 0; --t) mine[t] = std::max(mine[t], mine[t + 1] - in.app_cap[a]);
    }
    return level;
}

bool fits_pool(const tg_problem& in, Int p, Int gpus) {
    const Int node = in.pool_node[p], size = in.pool_gpus[p];
    return gpus <= (0 < gpus && gpus <= node ? std::min(node, size) : size);
}

// The size that was asked for, or the largest shape that fits its pool.
std::vector<Task> tasks_of(const tg_problem& in) {
    std::vector<Task> tasks(in.jobs);
    for (Int j = 0; j < in.jobs; ++j) {
        Int low = in.shape_start[j], high = in.shape_start[j + 1], chosen = -1;
        if (in.requested[j] >= 0) {
            low += in.requested[j];
            high = std::min(high, low + 1);
        }
        const auto key = [&](Int s) { return std::tuple(in.shape_gpus[s], -in.shape_steps[s], -s); };
        for (Int s = low; s < high; ++s)
            if (fits_pool(in, in.shape_pool[s], in.shape_gpus[s]) && (chosen < 0 || key(s) > key(chosen))) chosen = s;
        if (chosen >= 0)
            tasks[j] = {in.shape_pool[chosen], in.shape_gpus[chosen], in.shape_steps[chosen], in.earliest[j],
                        in.latest_end[j]};
    }
    return tasks;
}

enum class Mode { fifo, fifo_backfill, easy, priority, easy_priority, sjf, fifo_elastic };

std::vector<Int> queue_order(const tg_problem& in, const std::vector<Task>& tasks, Mode mode) {
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

}  // namespace

QueueStarts queue_starts(const tg_problem& in, const Board& b) {
    QueueStarts result;
    result.offset.assign(1, 0);
    for (Int p = 0; p < in.pools; ++p) result.offset.push_back(result.offset.back() + in.pool_gpus[p]);
    const std::vector<Task> tasks = tasks_of(in);
    const Int total = result.offset.back();
    double charged[2];
    Line empty[2] = {{in, result.offset, {}, {}}, {in, result.offset, {}, {}}};
    for (bool elastic : {false, true}) {
        const Owners& owner = result.owners.emplace_back(hold(in, result.offset, levels(in, elastic)));
        empty[elastic].reset(owner);
        double& penalty = charged[elastic] = 0.0;
        for (Int i = 0; i < in.apps; ++i) {
            const Int a = b.app_of[i];
            for (Int t = 0; t < in.steps; ++t) {
                Int held = 0;
                for (Int g = result.offset[in.app_pool[a]]; g < result.offset[in.app_pool[a] + 1]; ++g)
                    held += owner[t * total + g] == a;
                penalty += app_cost(b, i, t, held);
            }
            // What enters costs too, which is not counted here: then only the jobs' places are a start.
            if (b.app[i].swap_price > 0.0) penalty = kInfinity;
        }
    }
    std::vector<Int> number(in.pools);
    for (Int p = 0; p < in.pools; ++p) number[b.pool_of[p]] = p;
    for (Mode mode : {Mode::fifo, Mode::fifo_backfill, Mode::easy, Mode::priority, Mode::easy_priority, Mode::sjf,
                      Mode::fifo_elastic}) {
        const bool elastic = mode == Mode::fifo_elastic;
        Line line = empty[elastic];
        const std::vector<Int> order = queue_order(in, tasks, mode);
        const auto placed = mode == Mode::easy || mode == Mode::easy_priority
                                ? line.easy(tasks, order)
                                : line.in_order(tasks, order, mode == Mode::fifo || elastic);
        Start start{std::vector<Spot>(b.job.size()), {}, charged[elastic]};
        for (Int i = 0; i < Int(b.job.size()); ++i) {
            const Task& task = tasks[b.job[i].original];
            const Placed& place = placed[b.job[i].original];
            if (place.start < 0) continue;
            for (Int k = b.job[i].shape_first; k < b.job[i].shape_last; ++k) {
                const Shape& shape = b.shape[k];
                if (shape.pool == number[task.pool] && shape.gpus == task.gpus && shape.steps == task.steps)
                    start.spots[i] = {k, place.start, place.first - result.offset[task.pool]};
            }
        }
        result.starts.push_back(std::move(start));
        result.owner_of.push_back(elastic);
    }
    return result;
}

}  // namespace tidegrid::fast
