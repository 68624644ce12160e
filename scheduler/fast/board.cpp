#include "board.hpp"

#include <cmath>
#include <map>
#include <numeric>

namespace tidegrid::fast {

namespace {

// Two plans of equal objective differ by these: earlier arrivals first, earlier starts first.
constexpr double kOrderTilt = 1e-9;
constexpr double kTimeTilt = 1e-9;

template <class Key>
std::vector<Int> sorted_by(Int count, Key key) {
    std::vector<Int> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](Int a, Int b) { return key(a) < key(b); });
    return order;
}

struct Builder {
    const tg_problem& in;
    Board& b;
    std::vector<Int> number;                   // place on the board of each pool of the problem
    std::vector<std::vector<Int>> busy_until;  // by pool and GPU: the step in which what runs there has ended
    std::map<std::vector<Int>, Int> masks;     // where each pool's ranges lie in `Board::within`

    Int steps() const { return in.steps; }

    void pools() {
        b.pool_of = sorted_by(in.pools, [&](Int p) { return in.pool_rank[p]; });
        number.resize(in.pools);
        Int row = 0, legal = 0;
        for (Int i = 0; i < in.pools; ++i) {
            const Int p = b.pool_of[i];
            number[p] = i;
            Pool pool{};
            pool.gpus = in.pool_gpus[p];
            pool.words = (pool.gpus + 63) / 64;
            pool.node = in.pool_node[p];
            pool.by_node = in.pool_by_node[p] != 0;
            pool.row = row;
            pool.legal = legal;
            row += pool.words * steps();
            b.most_words = std::max(b.most_words, pool.words);
            for (Int size = 1; size <= pool.gpus && !pool.by_node; size *= 2) {
                b.legal.resize(legal + pool.words, 0);
                for (Int g = 0; g + size <= pool.gpus; ++g) {
                    const bool inside = pool.node == 0 || (size <= pool.node ? g / pool.node == (g + size - 1) / pool.node
                                                                             : g % pool.node == 0);
                    if (inside) fill(b.legal.data() + legal, g, 1);
                }
                legal += pool.words;
            }
            b.gpu_at.push_back(Int(b.taken_until.size()));
            b.taken_until.resize(b.taken_until.size() + pool.gpus, 0);
            b.pool.push_back(pool);
            busy_until.emplace_back(pool.gpus, 0);
        }
        b.base.assign(row, 0);
        for (const Pool& pool : b.pool)
            for (Int t = 0; t < steps(); ++t) fill(b.base.data() + pool.row + t * pool.words, 0, pool.gpus);
        b.base_used.assign(in.pools * in.width, 0);
        b.wanted.assign(in.pools * in.width, 0);
    }

    void take(Int p, Int gpu, Int until) {
        const Pool& pool = b.pool[p];
        Int& taken = b.taken_until[b.gpu_at[p] + gpu];
        taken = std::max(taken, until);
        for (Int t = 0; t < std::min(until, steps()); ++t)
            b.base[pool.row + t * pool.words + (gpu >> 6)] &= ~(Word{1} << (gpu & 63));
    }

    void running() {
        for (Int j = 0; j < in.jobs; ++j) {
            if (in.run_pool[j] < 0) continue;
            const Int p = number[in.run_pool[j]];
            for (Int i = in.run_start[j]; i < in.run_start[j + 1]; ++i) {
                take(p, in.run_gpu[i], in.run_steps[j]);
                busy_until[p][in.run_gpu[i]] = in.run_steps[j];
            }
            const Int gpus = in.run_start[j + 1] - in.run_start[j];
            for (Int t = 0; t < std::min(in.run_steps[j], in.width); ++t) b.base_used[p * in.width + t] += gpus;
        }
    }

    void closed() {
        for (Int c = 0; c < in.closed; ++c) {
            const Int* at = in.closed_at + 6 * c;
            Pool& pool = b.pool[number[at[0]]];
            pool.drains = true;
            if (at[5]) pool.down = true;
        }
        if (in.closed == 0) return;
        b.enter = b.base;
        b.down.assign(b.base.size(), 0);
        for (Int p = 0; p < Int(b.pool.size()); ++p)
            for (Int t = 0; t < steps(); ++t) fill(b.enter.data() + b.pool[p].row + t * b.pool[p].words, 0, b.pool[p].gpus);
        std::vector<std::vector<char>> counted(b.pool.size());
        for (Int c = 0; c < in.closed; ++c) {
            const Int* at = in.closed_at + 6 * c;
            const Int p = number[at[0]];
            const Pool& pool = b.pool[p];
            const Int low = std::max<Int>(at[1], 0), high = std::min(at[2], pool.gpus);
            auto& seen = counted[p];
            seen.resize(pool.gpus * in.width, 0);
            for (Int t = std::max<Int>(at[3], 0); t < std::min(at[4], in.width); ++t)
                for (Int g = low; g < high; ++g) {
                    const Word bit = Word{1} << (g & 63);
                    const Int word = pool.row + t * pool.words + (g >> 6);
                    if (t < steps()) b.enter[word] &= ~bit;
                    if (!at[5]) continue;
                    if (t < steps()) {
                        b.base[word] &= ~bit;
                        b.down[word] |= bit;
                    }
                    if (t >= busy_until[p][g] && !seen[g * in.width + t]) ++b.base_used[p * in.width + t];
                    seen[g * in.width + t] = 1;
                }
        }
        late();
    }

    void late() {
        for (Int p = 0; p < Int(b.pool.size()); ++p) {
            Pool& pool = b.pool[p];
            pool.late_first = Int(b.late.size());
            for (Int c = 0; c < in.closed; ++c) {
                const Int* at = in.closed_at + 6 * c;
                if (number[at[0]] != p || !at[5] || at[4] <= steps()) continue;
                b.late.push_back({std::max(at[3], steps()), Int(b.spared.size())});
                const Int low = std::max<Int>(at[1], 0), high = std::min(at[2], pool.gpus);
                b.spared.resize(b.spared.size() + pool.words, kAll);
                for (Int g = low; g < high; ++g) b.spared[b.late.back().at + (g >> 6)] &= ~(Word{1} << (g & 63));
            }
            pool.late_last = Int(b.late.size());
        }
    }

    void apps() {
        b.app_of = sorted_by(in.apps, [&](Int a) {
            return std::tuple(number[in.app_pool[a]], -in.app_priority[a], in.app_rank[a]);
        });
        b.demand.assign(in.apps * in.width, 0);
        b.floor.assign(in.apps * steps(), 0);
        b.held.assign(in.apps * b.most_words, 0);
        for (Int i = 0; i < in.apps; ++i) {
            const Int a = b.app_of[i], p = number[in.app_pool[a]];
            Pool& pool = b.pool[p];
            App app{};
            app.price = in.shortfall_weight * in.app_priority[a];
            app.floor_price = app.price * (in.floor_weight - 1.0);
            app.swap_price = in.swap_cost * in.app_priority[a];
            app.replica = in.app_replica[a];
            app.cap = in.app_cap[a] < 0 ? kNoCap : in.app_cap[a] / app.replica * app.replica;
            app.held_count = in.held_start[a + 1] - in.held_start[a];
            Int sum = 0;
            for (Int k = in.held_start[a]; k < in.held_start[a + 1]; ++k) {
                fill(b.held.data() + i * b.most_words, in.held[k], 1);
                sum += in.held[k];
            }
            if (app.held_count > 0 && double(sum) < (double(pool.gpus) - 1) / 2 * double(app.held_count)) pool.high = true;
            if (in.app_cap[a] >= 0 || app.replica > 1 || app.swap_price > 0 || pool.drains) pool.named = true;
            b.replicas.emplace_back(in.held + in.held_start[a], in.held + in.held_start[a + 1]);
            if (app.replica > 1 && !pool.by_node) pool.singles = true;
            if (in.app_floor[a] > 0 && app.floor_price > 0.0) pool.floors = true;
            if (app.cap == 0) keep(a, p);
            for (Int t = 0; t < in.width; ++t) {
                // What is wanted beyond the whole pool is short whatever the jobs do, so it decides nothing.
                Int& demand = b.demand[i * in.width + t] = std::min(in.demand[a * in.width + t], pool.gpus);
                // Nor is what no app under this cap could hold so soon.
                if (in.app_cap[a] >= 0 && t < steps())
                    demand = std::min(demand, app.held_count + in.app_cap[a] * (t + 1));
                if (t < steps()) b.floor[i * steps() + t] = std::min(demand, in.app_floor[a]);
                b.wanted[p * in.width + t] += t < steps() ? up(demand, app.replica) : demand;
            }
            b.app.push_back(app);
        }
        for (Int p = 0, a = 0; p < in.pools; ++p) {
            b.pool[p].app_first = a;
            while (a < in.apps && number[in.app_pool[b.app_of[a]]] == p) ++a;
            b.pool[p].app_last = a;
        }
        b.tight = sorted_by(in.apps, [&](Int i) { return std::pair(number[in.app_pool[b.app_of[i]]], b.app[i].cap); });
    }

    static Int up(Int count, Int unit) { return (count + unit - 1) / unit * unit; }

    // An app that may not move keeps its replicas as long as they are up.
    void keep(Int a, Int p) {
        const Int r = in.app_replica[a];
        for (Int k = in.held_start[a]; k < in.held_start[a + 1]; k += r) {
            Int until = steps();
            for (Int m = k; m < k + r; ++m) until = std::min(until, up_until(p, in.held[m]));
            for (Int m = k; m < k + r; ++m) take(p, in.held[m], until);
        }
    }

    Int up_until(Int p, Int gpu) const {
        const Pool& pool = b.pool[p];
        for (Int t = 0; pool.down && t < steps(); ++t)
            if (has(b.down.data() + pool.row + t * pool.words, gpu)) return t;
        return steps();
    }

    // Penalty of each pool and step for 0, 1, 2 … GPUs short, the cheapest first (contract, Figures).
    void costs() {
        b.cost_at.resize(in.pools * in.width);
        std::vector<std::pair<double, Int>> tiers;
        for (Int p = 0; p < in.pools; ++p)
            for (Int t = 0; t < in.width; ++t) {
                b.cost_at[p * in.width + t] = Int(b.cost.size());
                b.cost.push_back(0.0);
                tiers.clear();
                bool floors = false;
                for (Int a = b.pool[p].app_last - 1; a >= b.pool[p].app_first; --a) {
                    const App& app = b.app[a];
                    const Int demand = b.demand_of(a)[t];
                    if (demand == 0) continue;
                    if (t >= steps()) {
                        tiers.emplace_back(app.price, demand);
                        continue;
                    }
                    const Int many = up(demand, app.replica), below = b.floor_of(a)[t];
                    const double price = many == demand ? app.price : app.price * double(demand) / double(many);
                    tiers.emplace_back(price, many - below);
                    if (below > 0) tiers.emplace_back(price + app.floor_price, below);
                    floors |= below > 0;
                }
                if (floors)
                    std::stable_sort(tiers.begin(), tiers.end(), [](auto& x, auto& y) { return x.first < y.first; });
                for (auto [price, many] : tiers)
                    for (Int k = 0; k < many; ++k) b.cost.push_back(b.cost.back() + price * b.weight[t]);
            }
    }

    void weights() {
        b.weight.assign(in.weight, in.weight + in.width);
        b.before.assign(1, 0.0);
        for (Int t = 0; t < steps(); ++t)
            b.before.push_back(b.before.back() + b.weight[t] * (1.0 - kTimeTilt * double(t) / double(steps())));
    }

    void jobs() {
        std::vector<Int> by_rank(in.jobs);
        for (Int j = 0; j < in.jobs; ++j) by_rank[in.rank[j]] = j;
        std::vector<Int> waiting, place(in.jobs, -1);
        double top = 0.0;
        for (Int j : by_rank) {
            if (in.run_pool[j] >= 0) continue;
            place[j] = Int(waiting.size());
            waiting.push_back(j);
            top = std::max(top, in.priority[j]);
        }
        if (top == 0.0) top = 1.0;
        const double count = double(std::max<std::size_t>(1, waiting.size()));
        b.shape_of.assign(in.shapes, -1);
        for (Int i = 0; i < Int(waiting.size()); ++i) {
            const Int j = waiting[i];
            Job job{};
            job.value = in.priority[j] + top * kOrderTilt * (1.0 + double(waiting.size() - i) / count);
            job.earliest = in.earliest[j];
            job.original = j;
            job.shape_first = Int(b.shape.size());
            shapes(j, job);
            job.shape_last = Int(b.shape.size());
            b.job.push_back(job);
        }
        b.before_job.resize(waiting.size());
        b.after_job.resize(waiting.size());
        b.ready.assign(waiting.size(), 0);
        for (Int i = 0; i < Int(waiting.size()); ++i)
            for (Int k = in.after_start[waiting[i]]; k < in.after_start[waiting[i] + 1]; ++k) {
                const Int other = in.after[k];
                if (place[other] < 0) {
                    b.ready[i] = std::max(b.ready[i], in.run_steps[other]);
                } else {
                    b.before_job[i].push_back(place[other]);
                    b.after_job[place[other]].push_back(i);
                }
            }
    }

    void shapes(Int j, const Job& job) {
        const std::size_t first = b.shape.size();
        std::vector<std::pair<Int, Shape>> listed;
        for (Int s = in.shape_start[j]; s < in.shape_start[j + 1]; ++s) {
            Shape shape{};
            shape.pool = number[in.shape_pool[s]];
            const Pool& pool = b.pool[shape.pool];
            shape.gpus = in.shape_gpus[s];
            shape.log = std::bit_width(Word(shape.gpus)) - 1;
            shape.steps = in.shape_steps[s];
            shape.latest = std::min(steps() - 1, std::min(in.latest_end[j], kNoCap) - shape.steps);
            shape.work = in.shape_rate[s];
            shape.rate = job.value * shape.work - in.gpu_cost * double(shape.gpus);
            shape.nodes = in.shape_nodes[s];  // 0: its GPUs cannot lie evenly on nodes
            shape.within = -1;
            if (shape.latest < job.earliest || shape.gpus > pool.gpus) continue;
            if (pool.by_node && (shape.nodes == 0 || shape.gpus % shape.nodes != 0 || shape.gpus / shape.nodes > pool.node)) continue;
            if (in.within_start[s] < in.within_start[s + 1]) shape.within = mask(s, shape.pool);
            b.shape.push_back(shape);
            listed.emplace_back(s, shape);
        }
        const auto key = [](const Shape& s) {
            return std::tuple(s.pool, s.gpus, s.steps, s.nodes, s.within, -s.rate);
        };
        std::sort(b.shape.begin() + first, b.shape.end(), [&](auto& x, auto& y) { return key(x) < key(y); });
        const auto same = [&](auto& x, auto& y) { return key(x) == key(y); };
        b.shape.erase(std::unique(b.shape.begin() + first, b.shape.end(), same), b.shape.end());
        for (const auto& [s, shape] : listed)
            for (std::size_t k = first; k < b.shape.size(); ++k)
                if (same(b.shape[k], shape)) b.shape_of[s] = Int(k);
        for (std::size_t s = first; s < b.shape.size(); ++s) {
            // What a place is worth is the most that any shape of its size and length is worth (contract).
            for (std::size_t k = first; k < b.shape.size(); ++k)
                if (std::tuple(b.shape[k].pool, b.shape[k].gpus, b.shape[k].steps) ==
                    std::tuple(b.shape[s].pool, b.shape[s].gpus, b.shape[s].steps))
                    b.shape[s].rate = std::max(b.shape[s].rate, b.shape[k].rate);
            b.shape[s].limit_first = Int(b.limit.size());
            for (Int k = in.limit_start[j]; k < in.limit_start[j + 1]; ++k) {
                const Int l = in.limit[k];
                if (in.limit_pool[l] < 0 || number[in.limit_pool[l]] == b.shape[s].pool)
                    b.limit.push_back({l, in.limit_gpus[l] ? b.shape[s].gpus : 1});
            }
            b.shape[s].limit_last = Int(b.limit.size());
        }
        for (std::size_t s = first; s < b.shape.size(); ++s) {
            const auto yield = [](const Shape& shape) { return shape.work / double(shape.gpus); };
            const double mine = yield(b.shape[s]);
            double most = mine;
            for (std::size_t k = first; k < b.shape.size(); ++k)
                if (b.shape[k].pool == b.shape[s].pool) most = std::max(most, yield(b.shape[k]));
            b.shape[s].thrift = mine > 0.0 ? std::log(mine / most) : 0.0;
            b.thrift |= b.shape[s].thrift < 0.0;
        }
    }

    Int mask(Int s, Int p) {
        std::vector<Int> key{p};
        key.insert(key.end(), in.within + 2 * in.within_start[s], in.within + 2 * in.within_start[s + 1]);
        const auto [found, fresh] = masks.try_emplace(key, Int(b.within.size()));
        if (fresh) {
            const Pool& pool = b.pool[p];
            b.within.resize(b.within.size() + pool.words, 0);
            for (std::size_t k = 1; k < key.size(); k += 2) {
                const Int low = std::max<Int>(key[k], 0), high = std::min(key[k] + key[k + 1], pool.gpus);
                if (high > low) fill(b.within.data() + found->second, low, high - low);
            }
        }
        return found->second;
    }

    // Bins are classes of GPUs of a node: split by every closed window and every range in which a shape must lie.
    void bins() {
        b.gpu_bin.assign(b.taken_until.size(), 0);
        for (Int p = 0; p < Int(b.pool.size()); ++p) {
            Pool& pool = b.pool[p];
            pool.bin_first = Int(b.bin.size());
            pool.node_first = Int(b.node_bin.size());
            pool.seat = Int(b.seats.size());
            pool.bins = pool.nodes = 0;
            if (!pool.binned()) continue;
            const Int size = pool.node_size();
            std::vector<Int> kind(pool.gpus);
            for (Int g = 0; g < pool.gpus; ++g)
                kind[g] = pool.singles ? g : g / size * ((size + kMostSeats - 1) / kMostSeats) + g % size / kMostSeats;
            const auto split = [&](auto inside) {
                std::map<std::pair<Int, bool>, Int> seen;
                for (Int g = 0; g < pool.gpus; ++g)
                    kind[g] = seen.try_emplace({kind[g], inside(g)}, Int(seen.size())).first->second;
            };
            for (Int c = 0; c < in.closed; ++c)
                if (const Int* at = in.closed_at + 6 * c; number[at[0]] == p)
                    split([&](Int g) { return at[1] <= g && g < at[2]; });
            for (const auto& [key, at] : masks)
                if (key[0] == p) split([&](Int g) { return has(b.within.data() + at, g); });
            std::vector<Int> order = sorted_by(pool.gpus, [&](Int g) { return std::pair(g / size, kind[g]); });
            pool.nodes = (pool.gpus + size - 1) / size;
            for (Int i = 0; i < pool.gpus; ++i) {
                const Int g = order[i], node = g / size;
                if (i == 0 || kind[g] != kind[order[i - 1]]) {
                    if (i == 0 || node != order[i - 1] / size)
                        b.node_bin.push_back(Int(b.bin.size()) - pool.bin_first);
                    b.bin.push_back({node, Int(b.bin_gpu.size()), 0, late_from(pool, g)});
                }
                b.bin_gpu.push_back(g);
                b.bin.back().gpu_last = Int(b.bin_gpu.size());
                b.gpu_bin[b.gpu_at[p] + g] = Int(b.bin.size()) - 1 - pool.bin_first;
            }
            pool.bins = Int(b.bin.size()) - pool.bin_first;
            b.node_bin.push_back(pool.bins);
            b.seats.resize(pool.seat + steps() * pool.bins, 0);
            b.seats_enter.resize(b.seats.size(), 1);
            for (Int t = 0; t < steps(); ++t)
                for (Int i = 0; i < pool.bins; ++i) {
                    const Bin& bin = b.bin[pool.bin_first + i];
                    const Int g = b.bin_gpu[bin.gpu_first], at = pool.seat + t * pool.bins + i;
                    if (pool.drains) b.seats_enter[at] = has(b.enter_at(p, t), g);
                    if (pool.down && has(b.down.data() + pool.row + t * pool.words, g)) continue;
                    for (Int k = bin.gpu_first; k < bin.gpu_last; ++k)
                        b.seats[at] += b.taken_until[b.gpu_at[p] + b.bin_gpu[k]] <= t;
                }
        }
    }

    void holdings() {
        for (Int a = 0; a < in.apps; ++a) {
            const Int p = number[in.app_pool[b.app_of[a]]];
            b.holds_at.push_back(Int(b.holds.size()));
            b.holds.resize(b.holds.size() + b.pool[p].bins, 0);
            if (b.pool[p].binned())
                for (Int g : b.replicas[a]) b.holds[b.holds_at[a] + b.gpu_bin[b.gpu_at[p] + g]] = 1;
        }
    }

    Int late_from(const Pool& pool, Int gpu) const {
        Int from = kNoCap;
        for (Int i = pool.late_first; i < pool.late_last; ++i)
            if (!has(b.spared.data() + b.late[i].at, gpu)) from = std::min(from, b.late[i].from);
        return from;
    }

    void limits() {
        b.limit_most.assign(in.limit_most, in.limit_most + in.limits);
        b.base_load.assign(in.limits * steps(), 0);
        for (Int j = 0; j < in.jobs; ++j) {
            if (in.run_pool[j] < 0) continue;
            for (Int k = in.limit_start[j]; k < in.limit_start[j + 1]; ++k) {
                const Int l = in.limit[k];
                if (in.limit_pool[l] >= 0 && in.limit_pool[l] != in.run_pool[j]) continue;
                const Int weigh = in.limit_gpus[l] ? in.run_start[j + 1] - in.run_start[j] : 1;
                for (Int t = 0; t < std::min(in.run_steps[j], steps()); ++t) b.base_load[l * steps() + t] += weigh;
            }
        }
    }
};

}  // namespace

Board make_board(const tg_problem& in) {
    Board b;
    b.steps = in.steps;
    b.width = in.width;
    Builder build{in, b, {}, {}, {}};
    build.pools();
    build.running();
    build.closed();
    build.apps();
    build.weights();
    build.costs();
    build.jobs();
    build.bins();
    build.holdings();
    build.limits();
    return b;
}

}  // namespace tidegrid::fast
