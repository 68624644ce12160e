// The C interface: a whole search in one call.

#include <cmath>
#include <map>
#include <thread>

#include "starts.hpp"

using namespace tidegrid::fast;

struct tg_options {
    std::int64_t seed, rounds;  // rounds -1: as many as the budget buys
    std::int64_t threads;
    std::int64_t warms;         // legal plans to start from
    double budget_ms;           // -1: the default
    const std::int64_t* told;   // (J) start that was promised to each job, -1: none
    double promise;             // what each step later costs, as a share of what a step of the job earns
    Settings settings;
};

// Where the plan goes; the caller makes room for what the problem can need.
struct tg_plan {
    std::int64_t* placements;   // (J, 6) job, pool, first GPU, GPUs, start, steps, in the file's order
    std::int64_t* gpus;         // GPUs of each placement, rising, where placement is by node
    std::int64_t* cells_start;  // (A · T + 1) where the GPUs of each app and step begin
    std::int64_t* cells;        // GPUs that apps hold, replica after replica
    std::int64_t gpus_room, cells_room;
    std::int64_t placed;  // how many placements there are
};

namespace {

// Milliseconds of search by default. At 8 GPUs and 14 jobs the whole answer is to come in a millisecond; what is a
// little larger has many more ways to be filled, and gets up to so many milliseconds a job, less where GPUs are many,
// more where no app has to be served. Sizes that take different GPU-steps for the same work are worth as much again.
constexpr double kLeastMs = 0.45, kLeastMsOfSizes = 0.9, kSmallBoard = 8 * 14;
constexpr double kMsPerJob = 1.2, kMsPerJobAlone = 0.9, kMostMs = 24.0, kMostMsAlone = 14.0, kFewGpus = 16;
constexpr double kManyGpus = 2.3, kManyGpusAlone = 0.8;  // powers with which more GPUs get less
// From so many jobs on greedy starts are near the bound, and their own time counts; with more than `kMostFurtherJobs`
// beyond them no search that takes less than the starts adds a ten-thousandth.
constexpr double kManyJobs = 100, kMostFurtherJobs = 2000, kMsPerFurtherJob = 0.02;

// A search of fewer rounds than this is not worth beginning anew.
constexpr Int kLeastRounds = 400, kMostSearches = 4;

double default_budget(const Board& b) {
    double jobs = double(b.job.size()), gpus = 0.0;
    for (const Pool& pool : b.pool) gpus += double(pool.gpus);
    const bool alone = b.app.empty();
    const double fewer = std::pow(kFewGpus / std::max(kFewGpus, gpus), alone ? kManyGpusAlone : kManyGpus);
    const double most = alone ? std::min(kMostMsAlone, kMsPerJobAlone * jobs * fewer)
                              : std::min(kMostMs, kMsPerJob * jobs * fewer);
    const double wanted = kLeastMs * std::pow(jobs * gpus / kSmallBoard, 6.0);
    const double further = std::clamp(jobs - kManyJobs, 0.0, kMostFurtherJobs);
    return std::max(b.thrift ? kLeastMsOfSizes : kLeastMs, std::min(most, wanted)) + kMsPerFurtherJob * further;
}

// Rounds that a budget buys, from the problem's size alone (microseconds a round, fitted on one core).
Int rounds_for(const Board& b, double budget_ms) {
    if (budget_ms < 0.0) budget_ms = default_budget(b);
    const double jobs = double(b.job.size()), shapes = double(b.shape.size()) / std::max(1.0, jobs);
    double capped = 0.0, most_gpus = 0.0;
    for (const App& app : b.app) capped += app.cap < kNoCap;
    // replicas on nodes are named one by one, GPUs in a line by the word
    for (const Pool& pool : b.pool) most_gpus = std::max(most_gpus, double(pool.gpus) * (pool.binned() ? 2.0 : 1.0));
    const double naming = capped * (0.08 + 0.016 * most_gpus / 16);
    const double micros =
        0.6 * (0.1 + double(b.steps) * (0.14 + 0.012 * double(b.most_words) * shapes + naming) + 0.024 * jobs);
    return Int(1000 * budget_ms / micros);
}

// Give equal jobs their places in order of arrival: the earliest start to the first, none to the last.
void first_come(const tg_problem& in, const Board& b, State& s) {
    std::map<std::vector<double>, std::vector<Int>> groups;
    for (Int j = 0; j < Int(b.job.size()); ++j) {
        const Job& job = b.job[j];
        if (job.shape_first == job.shape_last || !b.before_job[j].empty() || !b.after_job[j].empty()) continue;
        std::vector<double> key{in.priority[job.original], double(std::max(job.earliest, b.ready[j]))};
        for (Int k = job.shape_first; k < job.shape_last; ++k) {
            const Shape& shape = b.shape[k];
            for (Int n : {shape.pool, shape.gpus, shape.steps, shape.latest, shape.nodes, shape.within})
                key.push_back(double(n));
            key.push_back(shape.work);
            for (Int l = shape.limit_first; l < shape.limit_last; ++l) key.push_back(double(b.limit[l].at));
        }
        groups[std::move(key)].push_back(j);
    }
    for (const auto& [key, jobs] : groups) {
        if (jobs.size() == 1) continue;
        std::vector<std::tuple<bool, Int, Int, Int, Pieces>> places;
        for (Int j : jobs) {
            const Spot& spot = s.spot[j];
            places.emplace_back(spot.shape < 0, spot.start, spot.first, spot.shape - b.job[j].shape_first, s.pieces[j]);
        }
        std::sort(places.begin(), places.end(), [](const auto& x, const auto& y) {
            const auto key = [](const auto& place) {
                const auto& [waits, start, first, shape, pieces] = place;
                return std::tuple(waits, start, first, shape);
            };
            return key(x) < key(y);
        });
        for (std::size_t i = 0; i < jobs.size(); ++i) {
            const auto& [waits, start, first, shape, pieces] = places[i];
            s.spot[jobs[i]] = {waits ? -1 : b.job[jobs[i]].shape_first + shape, start, first};
            s.pieces[jobs[i]] = pieces;
        }
    }
}

// Rounds are shared out among a number of searches that depends on them alone, each cooling anew from the same start;
// the best is taken, the first of equals. So two threads give the same bytes as one.
State improved(const Board& b, State start, Int rounds, const tg_options& options) {
    const Int many = std::clamp<Int>(rounds / kLeastRounds, 1, kMostSearches);
    std::vector<State> states(many, start);
    std::vector<double> found(many);
    const auto run = [&](Int i) {
        // The first goes on with the numbers of the start; the others with a stream each (Knuth's multiplier).
        if (i > 0) states[i].random.x ^= Word(i) * 6364136223846793005u;
        found[i] = improve(b, states[i], rounds / many + (i < rounds % many), options.settings);
    };
    const Int threads = std::clamp<Int>(options.threads, 1, many);
    std::vector<std::thread> others;
    for (Int k = 1; k < threads; ++k)
        others.emplace_back([&, k] {
            for (Int i = k; i < many; i += threads) run(i);
        });
    for (Int i = 0; i < many; i += threads) run(i);
    for (std::thread& other : others) other.join();
    return std::move(states[std::max_element(found.begin(), found.end()) - found.begin()]);
}

void promise(Board& b, const tg_options& options) {
    if (!options.told) return;
    for (const Job& job : b.job)
        for (Int k = job.shape_first; k < job.shape_last; ++k) {
            b.shape[k].told = options.told[job.original];
            b.shape[k].promise = options.promise * job.value * b.shape[k].work;
        }
}

using Gpus = std::vector<Int>;

// A legal plan's placements on the board.
Start warm_spots(const Board& b, const Int* warm, const Int* gpu_start, const Int* gpu) {
    Start start{std::vector<Spot>(b.job.size()), std::vector<Pieces>(b.job.size()), kInfinity};
    for (Int i = 0; i < Int(b.job.size()); ++i) {
        const Int j = b.job[i].original;
        const Int* row = warm + 5 * j;
        for (Int k = b.job[i].shape_first; k < b.job[i].shape_last; ++k) {
            const Shape& shape = b.shape[k];
            if (row[0] != b.pool_of[shape.pool] || row[1] != shape.gpus || row[2] != shape.steps) continue;
            start.spots[i] = {k, row[3], row[4]};
            if (b.pool[shape.pool].by_node)
                start.pieces[i] = pieces_on(b, shape.pool, std::span(gpu + gpu_start[j], gpu + gpu_start[j + 1]));
        }
    }
    return start;
}

void write_placements(const tg_problem& in, const Board& b, const State& s, const std::vector<Gpus>& job_gpus,
                      tg_plan& out) {
    struct Row {
        Int start, pool_rank, first, id_rank, job, pool, size, steps;
        const Int* gpus;
        auto key() const { return std::tuple(start, pool_rank, first, id_rank); }
    };
    std::vector<Row> rows;
    for (Int j = 0; j < in.jobs; ++j) {
        if (in.run_pool[j] < 0) continue;
        const Int p = in.run_pool[j], low = in.run_start[j];
        rows.push_back({0, in.pool_rank[p], in.run_gpu[low], in.id_rank[j], j, p, in.run_start[j + 1] - low,
                        in.run_steps[j], in.run_gpu + low});
    }
    for (Int i = 0; i < Int(b.job.size()); ++i) {
        const Spot& spot = s.spot[i];
        if (spot.shape < 0) continue;
        const Shape& shape = b.shape[spot.shape];
        const Int j = b.job[i].original;
        const Int first = job_gpus[i].empty() ? spot.first : job_gpus[i].front();
        rows.push_back({spot.start, shape.pool, first, in.id_rank[j], j, b.pool_of[shape.pool], shape.gpus,
                        shape.steps, job_gpus[i].data()});
    }
    std::sort(rows.begin(), rows.end(), [](const Row& x, const Row& y) { return x.key() < y.key(); });
    out.placed = Int(rows.size());
    Int* gpus = out.gpus;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const Row& row = rows[i];
        const Int values[] = {row.job, row.pool, row.first, row.size, row.start, row.steps};
        std::copy(std::begin(values), std::end(values), out.placements + 6 * i);
        if (in.pool_by_node[row.pool]) gpus = std::copy_n(row.gpus, row.size, gpus);
    }
}

void write_cells(const std::vector<Gpus>& cells, tg_plan& out) {
    Int at = out.cells_start[0] = 0;
    for (std::size_t i = 0; i < cells.size(); ++i) {
        std::copy(cells[i].begin(), cells[i].end(), out.cells + at);
        out.cells_start[i + 1] = at += Int(cells[i].size());
    }
}

// Whether what the plan needs at most has room.
bool fits(const tg_problem& in, const tg_plan& out) {
    Int gpus = 0, cells = 0;
    for (Int j = 0; j < in.jobs; ++j) {
        Int most = in.run_start[j + 1] - in.run_start[j];
        for (Int k = in.shape_start[j]; k < in.shape_start[j + 1]; ++k) most = std::max(most, in.shape_gpus[k]);
        gpus += most;
    }
    for (Int p = 0; p < in.pools; ++p)
        if (std::any_of(in.app_pool, in.app_pool + in.apps, [&](Int pool) { return pool == p; }))
            cells += in.pool_gpus[p] * in.steps;
    return gpus <= out.gpus_room && cells <= out.cells_room;
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] std::int64_t tg_fast_rounds(const tg_problem* in, double budget_ms) {
    return rounds_for(make_board(*in), budget_ms);
}

// Plan a problem from the baselines' starts, greedy ones, and the placements of K plans: `warm` (K · J, 5) pool, GPUs,
// steps, start, first GPU; pool -1: none; `warm_start` (K · J + 1) and `warm_gpu`: all their GPUs, where placement is
// by node.
[[gnu::visibility("default")]] bool tg_fast_plan(const tg_problem* problem, const tg_options* options,
                                                 const std::int64_t* warm, const std::int64_t* warm_start,
                                                 const std::int64_t* warm_gpu, tg_plan* out) {
    const tg_problem& in = *problem;
    if (!fits(in, *out)) return false;
    Board b = make_board(in);
    promise(b, *options);
    State s(b, options->seed);
    Starts given = baseline_starts(in, b);
    for (Int k = 0; k < options->warms; ++k)
        given.starts.push_back(warm_spots(b, warm + 5 * k * in.jobs, warm_start + k * in.jobs, warm_gpu));
    std::vector<Int> owner_at(1, 0);
    for (const Pool& pool : b.pool) owner_at.push_back(owner_at.back() + pool.gpus * b.steps);
    std::vector<std::int32_t> owners(owner_at.back() + 1, -1);
    const Begun own = begin(b, s, given.starts);
    const Int rounds = options->rounds < 0 ? rounds_for(b, options->budget_ms) : options->rounds;
    if (rounds > 0 && !b.job.empty()) s = improved(b, std::move(s), rounds, *options);
    const double worth = finish(b, s, owners.data(), owner_at);
    if (own.worth > worth + 1e-9 * std::abs(worth)) {
        // A baseline with its own apps is worth more than what the search makes of it.
        restore(b, s, given.starts[own.own].spots, given.starts[own.own].pieces);
        hold_as(b, s, given.cells[given.cells_of[own.own]], owners.data(), owner_at);
        settle_jobs(b, s, owners.data(), owner_at);
    }

    std::vector<Gpus> cells(in.apps * in.steps), job_gpus(b.job.size()), stay_gpus(s.stays.size());
    std::vector<char> has_apps(in.pools, 0);
    for (Int a = 0; a < in.apps; ++a) has_apps[in.app_pool[a]] = 1;
    first_come(in, b, s);
    for (Int i = 0; i < in.pools; ++i) {
        const Int p = b.pool_of[i];
        if (b.pool[i].binned()) {
            assign(b, s, i, job_gpus, stay_gpus);
            continue;
        }
        if (!has_apps[p]) continue;
        for (Int t = 0; t < in.steps; ++t)
            for (Int g = 0; g < in.pool_gpus[p]; ++g)
                if (const Int a = owners[owner_at[i] + g * b.steps + t]; a >= 0)
                    cells[b.app_of[a] * in.steps + t].push_back(g);
    }
    for (std::size_t i = 0; i < s.stays.size(); ++i)
        for (Int t = std::max<Int>(0, s.stays[i].from); t < s.stays[i].until; ++t) {
            Gpus& cell = cells[b.app_of[s.stays[i].app] * in.steps + t];
            cell.insert(cell.end(), stay_gpus[i].begin(), stay_gpus[i].end());
        }
    for (Int a = 0; a < in.apps; ++a)
        for (Int t = 0; t < in.steps; ++t)
            if (Gpus& cell = cells[a * in.steps + t]; in.app_replica[a] == 1) std::sort(cell.begin(), cell.end());
    write_cells(cells, *out);
    write_placements(in, b, s, job_gpus, *out);
    return true;
}

}  // extern "C"
