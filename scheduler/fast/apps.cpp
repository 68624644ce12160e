// Which GPUs the apps hold: counts are named so that as few as possible change hands, within every cap.

#include <numeric>

#include "state.hpp"

namespace tidegrid::fast {

namespace {

// A dip of demand this many steps long or shorter is bridged: its GPUs are kept where no job needs them.
constexpr Int kBridge = 4;

// Call `use` for at most `many` GPUs of a set, from one end; returns how many are left over.
template <class Use>
Int pick(const Word* set, Int words, Int many, bool from_top, Use use) {
    for (Int i = 0; i < words && many > 0; ++i) {
        const Int k = from_top ? words - 1 - i : i;
        Word rest = set[k];
        for (; rest && many > 0; --many) {
            const Word bit = Word{1} << (from_top ? highest(rest) : lowest(rest));
            rest &= ~bit;
            use(k, bit);
        }
    }
    return many;
}

// The app at hand, in the step at hand, and working memory for it.
struct Holder {
    const Board& b;
    State& s;
    const Pool& pool;
    const Word* free;  // its pool's sets, by step
    Word* hold;
    Int cap;

    const Word* down_at(Int t) const { return pool.down ? b.down.data() + pool.row + t * pool.words : nullptr; }

    // How many more of the GPUs held jobs take, by any one step from `since` on, than can be left after t.
    // A GPU that goes down before a job takes it is left at no cost.
    Int due(Int t, Int since) const {
        Word* run = s.run.data();
        std::copy_n(hold, pool.words, run);
        Int now = size_of(run, pool.words), worst = -kNoLimit;
        for (Int k = t; k < b.steps; ++k) {
            if (const Word* down = down_at(k); down && k > t) {
                for (Int i = 0; i < pool.words; ++i) {
                    now -= ones(run[i] & down[i]);
                    run[i] &= ~down[i];
                }
            }
            Int stay = 0;
            for (Int i = 0; i < pool.words; ++i) stay += ones(run[i] &= free[k * pool.words + i]);
            if (k < since) continue;
            worst = std::max(worst, now - stay - cap * (k - t));
            if (cap * (k - t) >= now) break;
        }
        return worst;
    }

    // How many GPUs are going to lack for the counts of some step after t, because jobs take so many held ones by then that
    // leaving these uses up the swaps: so many more must enter now, while the others are still held.
    Int ahead(const Int* count, Int t) const {
        if (cap == 0 || cap >= kNoCap) return 0;
        Word* run = s.run.data();
        std::copy_n(hold, pool.words, run);
        const Int now = size_of(run, pool.words);
        Int down_until = 0, worst = 0;  // GPUs that went down first leave at no cost
        for (Int k = t + 1; k < b.steps && cap * (k - t) < now + count[k]; ++k) {
            if (const Word* down = down_at(k))
                for (Int i = 0; i < pool.words; ++i) {
                    down_until += ones(run[i] & down[i]);
                    run[i] &= ~down[i];
                }
            Int stay = 0;
            for (Int i = 0; i < pool.words; ++i) stay += ones(run[i] &= free[k * pool.words + i]);
            const Int paid = now - down_until - stay;
            worst = std::max(worst, count[k] - stay - std::max<Int>(0, cap * (k - t) - paid));
        }
        return worst;
    }

    // Leave the GPUs that jobs take soonest: what must go, and what is over the count; how many, or -1.
    Int leave(Int count, Int t) {
        const Int now = size_of(hold, pool.words);
        if (now == 0) return 0;
        const Int must = due(t, t);
        if (must > cap) return -1;
        const Int go = std::max(must, std::min(now - count, cap));
        if (go <= 0) return 0;
        Word *run = s.run.data(), *gone = s.gone.data();
        std::copy_n(hold, pool.words, run);
        const auto drop = [&](Int k, Word bit) { hold[k] &= ~bit; };
        Int rest = go;
        for (Int k = t; k < b.steps; ++k) {
            for (Int i = 0; i < pool.words; ++i) {
                gone[i] = run[i] & ~free[k * pool.words + i];
                run[i] &= ~gone[i];
            }
            rest = pick(gone, pool.words, rest, pool.high, drop);
            if (rest == 0) return go;
        }
        pick(run, pool.words, rest, pool.high, drop);
        return go;
    }

    // Enter at most `wish` of the GPUs in the window, those that stay free longest; returns how many.
    Int enter(Int wish, Int t) {
        // From here on the window holds the GPUs that stay free through step t, t + 1, …
        Word *window = s.window.data(), *gone = s.gone.data();
        const Int words = pool.words;
        Int last = t;
        for (Int k = t + 1; k < b.steps; ++k) {
            Int many = 0;
            for (Int i = 0; i < words; ++i)
                many += ones(window[(k - t) * words + i] = window[(k - 1 - t) * words + i] & free[k * words + i]);
            if (many == 0) break;
            last = k;
        }
        Int entered = 0;
        for (Int k = last; k >= t && entered < wish; --k) {
            // Free through step k, not through k + 1: taken by a job at k + 1 unless the horizon ends there.
            const Word* here = window + (k - t) * words;
            for (Int i = 0; i < words; ++i) gone[i] = here[i] & ~(k < last ? here[words + i] : 0);
            Int allowed = wish - entered;
            if (k + 1 < b.steps && cap < kNoCap) allowed = std::min(allowed, -due(t, k + 1));
            if (allowed > 0)
                entered += allowed - pick(gone, words, allowed, !pool.high, [&](Int i, Word bit) { hold[i] |= bit; });
        }
        return entered;
    }

    void fail(Int t) {
        if (const Word* down = down_at(t))
            for (Int i = 0; i < pool.words; ++i) hold[i] &= ~down[i];
    }
};

}  // namespace

// Bridge short dips of the counts in `s.count` where there is room, so that no app goes down and up.
void settle(const Board& b, State& s, Int p) {
    const Pool& pool = b.pool[p];
    const Int steps = b.steps;
    std::vector<Int>&room = s.room, &line = s.line;
    for (Int t = 0; t < steps; ++t) {
        room[t] = pool.gpus - s.used[p * b.width + t];
        for (Int a = pool.app_first; a < pool.app_last; ++a) room[t] -= s.count[a * steps + t];
    }
    for (Int a = pool.app_first; a < pool.app_last; ++a) {
        const App& app = b.app[a];
        Int* count = s.count.data() + a * steps;
        // Morphological closing: the least, over windows of `bridge` + 1 steps around t, of their greatest count.
        const Int bridge = app.swap_price > 0.0 ? std::min(steps, 4 * kBridge) : kBridge;
        for (Int t = 0; t < steps; ++t) {
            Int bridged = kNoLimit;
            for (Int k = t - bridge; k <= t; ++k) {
                Int greatest = k < 0 ? app.held_count : 0;
                for (Int m = std::max<Int>(k, 0); m < std::min(k + bridge + 1, steps); ++m)
                    greatest = std::max(greatest, count[m]);
                bridged = std::min(bridged, greatest);
            }
            line[t] = std::min(bridged, count[t] + std::max<Int>(0, room[t]));
            if (app.replica > 1) line[t] -= line[t] % app.replica;
        }
        Int before = app.held_count;
        for (Int t = 0; t < steps; ++t) before = line[t] = std::min(line[t], before + app.cap);
        for (Int t = steps - 2; t >= 0; --t) line[t] = std::min(line[t], line[t + 1] + app.cap);
        for (Int t = 0; t < steps; ++t) {
            room[t] -= line[t] - count[t];
            count[t] = line[t];
        }
    }
}

// Name the GPUs behind `s.count`, step by step; returns what the shortfall within the horizon costs.
//
// An app leaves first the GPUs that jobs take soonest, early enough that its cap lets it leave them all in time,
// and enters those that stay free longest. `s.trial` gets the apps' GPUs if `keep`, `owners` the app on each GPU
// and step where it is given. Infinite where a cap cannot be kept.
double name(const Board& b, State& s, Int p, bool keep, std::int32_t* owners) {
    const Pool& pool = b.pool[p];
    if (pool.binned()) return name_on_nodes(b, s, p, keep, owners != nullptr);
    const Int words = pool.words, steps = b.steps;
    const Word* free = s.free.data() + pool.row;
    const auto holder = [&](Int a) {
        return Holder{b, s, pool, free, s.hold.data() + a * b.most_words, b.app[a].cap};
    };
    for (Int a = pool.app_first; a < pool.app_last; ++a) {
        std::copy_n(b.held_of(a), words, s.hold.data() + a * b.most_words);
        s.hold_count[a] = b.app[a].held_count;
    }
    double total = 0.0;
    for (Int t = 0; t < steps; ++t) {
        for (Int a = pool.app_first; a < pool.app_last; ++a) {
            Holder one = holder(a);
            if (pool.down) {
                one.fail(t);
                s.hold_count[a] = size_of(one.hold, words);
            }
            s.left[a] = one.cap;
            if (one.cap == 0) continue;
            const Int went = one.leave(s.count[a * steps + t], t);
            if (went < 0) return kInfinity;
            s.hold_count[a] -= went;
            s.left[a] -= went;
        }
        const auto enter = [&](Int a, Int wish) {
            if ((wish = std::min(wish, s.left[a])) <= 0) return;
            const Word* open = b.enter_at(p, t);
            for (Int k = 0; k < words; ++k) {
                Word set = free[t * words + k];
                if (open) set &= open[k];
                for (Int other = pool.app_first; other < pool.app_last; ++other)
                    set &= ~s.hold[other * b.most_words + k];
                s.window[k] = set;
            }
            const Int came = holder(a).enter(wish, t);
            s.hold_count[a] += came;
            s.left[a] -= came;
            if (b.app[a].swap_price > 0.0) total += b.app[a].swap_price * b.weight[t] * double(came);
        };
        for (Int i = pool.app_first; i < pool.app_last; ++i) {
            // The counts fit whoever is first; what stays free longest goes to those that can move least.
            const Int a = b.tight[i];
            enter(a, s.count[a * steps + t] - s.hold_count[a]);
        }
        for (Int i = pool.app_first; i < pool.app_last; ++i) {
            const Int a = b.tight[i];
            enter(a, holder(a).ahead(s.count.data() + a * steps, t));
            total += app_cost(b, a, t, s.hold_count[a]);
        }
        if (keep)
            for (Int k = 0; k < words; ++k) {
                Word held = 0;
                for (Int a = pool.app_first; a < pool.app_last; ++a) held |= s.hold[a * b.most_words + k];
                s.trial[pool.row + t * words + k] = held;
            }
        if (owners)
            for (Int a = pool.app_first; a < pool.app_last; ++a)
                pick(s.hold.data() + a * b.most_words, words, pool.gpus, false, [&](Int k, Word bit) {
                    owners[(64 * k + lowest(bit)) * steps + t] = std::int32_t(a);
                });
    }
    return total;
}

// Penalty of a pool past the horizon.
double tail_penalty(const Board& b, const State& s, Int p) {
    double total = 0.0;
    for (Int t = b.steps; t < b.width; ++t)
        if (b.wanted_at(p, t) > 0) total += short_cost(b, p, t, s.used[p * b.width + t]);
    return total;
}

// Penalty of a pool with the GPUs named: what the contract charges. Leaves the names in `s.trial`.
double full_penalty(const Board& b, State& s, Int p) {
    const double counted = pool_penalty(b, s, p);
    if (!b.pool[p].named) return counted;
    s.named_trial[p] = name(b, s, p, true, nullptr);
    return s.named_trial[p] + tail_penalty(b, s, p);
}

// Make the names that were tried those of the plan at hand.
void adopt(const Board& b, State& s, Int p) {
    const Pool& pool = b.pool[p];
    if (!pool.named || s.named_trial[p] < 0.0) return;
    s.named[p] = s.named_trial[p];
    if (pool.by_node) {
        std::copy_n(s.trial_seats.begin() + pool.seat, b.steps * pool.bins, s.held_seats.begin() + pool.seat);
        for (Int t = 0; t < b.steps; ++t) {
            const auto row = s.held_seats.begin() + pool.seat + t * pool.bins;
            s.kept[p * b.steps + t] = std::accumulate(row, row + pool.bins, Int{0});
        }
        return;
    }
    std::copy_n(s.trial.begin() + pool.row, b.steps * pool.words, s.cells.begin() + pool.row);
    for (Int t = 0; t < b.steps; ++t)
        s.kept[p * b.steps + t] = size_of(s.cells.data() + pool.row + t * pool.words, pool.words);
}

}  // namespace tidegrid::fast
