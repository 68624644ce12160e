// Where a job goes: the shape, start and block with the largest marginal objective and the best fit.

#include <cmath>

#include "state.hpp"

namespace tidegrid::fast {

namespace {

// Legal blocks looked at for one start: the ends of each run of free GPUs, from the side that jobs are packed on.
constexpr Int kMostCorners = 12;
constexpr Int kPart = 16;        // words of a set that are searched at once: 1,024 GPUs
constexpr Int kMostStarts = 6;   // starts with room that are looked at in a large pool
constexpr double kSkipShape = 0.15;

struct Fit {
    double touch = -1.0;
    Int first = -1;
};

struct Range {
    Int first = -1, last = -1;
};

// Words of a pool's sets that are searched at once.
struct Part {
    Int word = 0, words = 0;
};

// Take out of a set of GPUs those on which a shape may not lie from a start.
void bar(const Board& b, const Shape& shape, Int start, Part part, Word* set) {
    const Pool& pool = b.pool[shape.pool];
    const auto keep = [&](const Word* allowed) {
        for (Int k = 0; k < part.words; ++k) set[k] &= allowed[part.word + k];
    };
    if (pool.drains) keep(b.enter_at(shape.pool, start));
    if (shape.within >= 0) keep(b.within.data() + shape.within);
    for (Int i = pool.late_first; i < pool.late_last; ++i)
        if (start + shape.steps > b.late[i].from) keep(b.spared.data() + b.late[i].at);
}

// Best legal block for a start among the corners of the window: its contact and its first GPU.
// Blocks that could as well start one step earlier, from `begin`, and later, to `stop`, are ignored.
Fit fit_at(const Board& b, State& s, const Shape& shape, Int start, Int begin, Int stop, Part part) {
    const Pool& pool = b.pool[shape.pool];
    Fit best;
    double top = -1.0;
    Int looked = 0;
    const Word* here = s.window.data() + start * part.words;
    for (Int i = 0; i < part.words; ++i) {
        const Int k = pool.high ? part.words - 1 - i : i;
        if (here[k] == 0) continue;
        const Word lower = here[k] << 1 | (k > 0 ? here[k - 1] >> 63 : 0);
        const Word upper = here[k] >> 1 | (k + 1 < part.words ? here[k + 1] << 63 : 0);
        Word corners = here[k] & ~(lower & upper);
        if (begin < start && start < stop) corners &= ~(here[k - part.words] & here[k + part.words]);
        while (corners) {
            const Int bit = pool.high ? highest(corners) : lowest(corners);
            corners &= ~(Word{1} << bit);
            const Int first = 64 * (part.word + k) + bit;
            if (pool.named && !keeps_caps(b, s, shape.pool, start, first, shape.gpus)) continue;
            const Int away = pool.high ? pool.gpus - shape.gpus - first : first;
            const double touch = contact(b, s, shape.pool, shape.gpus, start, shape.steps, first);
            const double score = touch - 1e-3 * double(away) / double(pool.gpus);
            if (score > top) {
                top = score;
                best = {score, first};
            }
            if (++looked >= kMostCorners) return best;
        }
    }
    return best;
}

// Sum up in `s.sums` what `size` more GPUs for jobs would cost a pool's apps, from step `low` on.
void price_block(const Board& b, State& s, Int p, Int size, Int low, Int until, bool apart) {
    double total = 0.0;
    s.sums[low] = 0.0;
    for (Int t = low; t < std::min(b.width, until); ++t) {
        // Jobs that keep off the apps' cells cost nothing within the horizon.
        if (b.wanted_at(p, t) > 0 && (!apart || t >= b.steps)) {
            const Int used = s.used[p * b.width + t];
            // A step without room for the block has no cost, as no window with it is open.
            if (used + size <= b.pool[p].gpus) total += short_cost(b, p, t, used + size) - short_cost(b, p, t, used);
        }
        s.sums[t + 1] = total;
    }
}

// Fill the window with the first GPUs of legal blocks, by start; first and last start with any.
Range open_at(const Board& b, State& s, const Shape& shape, Int low, Int high, Part part, bool apart) {
    const Pool& pool = b.pool[shape.pool];
    const Int row = pool.row + part.word;
    const Word* legal = b.legal.data() + pool.legal + shape.log * pool.words + part.word;
    overlap(s.free.data() + row, apart ? s.cells.data() + row : nullptr, pool.words, part.words, b.steps, shape.steps,
            low, high, s.window.data());
    const bool barred = pool.drains || shape.within >= 0;
    Range open;
    for (Int start = low; start <= high; ++start) {
        Word* set = s.window.data() + start * part.words;
        if (barred) bar(b, shape, start, part, set);
        if (!runs(set, part.words, shape.log, legal)) continue;
        open.last = start;
        if (open.first < 0) open.first = start;
    }
    return open;
}

// Whether enough GPUs of a pool are free in each step, wherever they are.
bool has_room(const Board& b, const State& s, Int p, Int size, Int start, Int end, bool apart) {
    for (Int t = start; t < std::min(end, b.steps); ++t)
        if (s.used[p * b.width + t] + (apart ? s.kept[p * b.steps + t] : 0) + size > b.pool[p].gpus) return false;
    return true;
}

// First part of a large pool, from the jobs' side, with a legal block for a start; no words where there is none.
Part part_at(const Board& b, State& s, const Shape& shape, Int start, bool apart) {
    const Pool& pool = b.pool[shape.pool];
    const Int more = shape.gpus / 64 + 1;  // for blocks that reach into the next part
    const Int parts = (pool.words + kPart - 1) / kPart;
    for (Int i = 0; i < parts; ++i) {
        Part part{kPart * (pool.high ? parts - 1 - i : i), 0};
        part.words = std::min(pool.words - part.word, kPart + more);
        if (open_at(b, s, shape, start, start, part, apart).first >= 0) return part;
    }
    return {};
}

// Look for a better place of a shape in a pool whose GPUs lie in a line.
void look_in_line(const Board& b, State& s, Int k, Int low, Int high, double fit, double blink, Place& best) {
    const Shape& shape = b.shape[k];
    const Int p = shape.pool;
    const Pool& pool = b.pool[p];
    const bool apart = pool.named && s.heed == Heed::apart;
    // Sets of few words are searched for all starts at once, longer ones start by start and in parts.
    const bool large = pool.words > kPart;
    if (!large) {
        const Range open = open_at(b, s, shape, low, high, {0, pool.words}, apart);
        if (open.first < 0) return;
        low = open.first;
        high = open.last;
    }
    const auto [wanted, _, exact, limited] = price(b, s, shape, low, high);
    Range open{low, high};
    double last_guess = -kInfinity;
    Int looked = 0;
    for (Int start = low; start <= high; ++start) {
        const Int inside = std::min(start + shape.steps, b.steps);
        double gain = b.worth(shape, start);
        double guess = gain;
        if (wanted) guess -= s.sums[std::min(start + shape.steps, b.width)] - s.sums[start];
        const bool rising = guess > last_guess;
        last_guess = guess;
        if (guess * (1.0 + fit) <= best.gain) continue;
        if (limited && s.shut[inside] > s.shut[start]) continue;
        if (blink > 0.0 && s.random.uniform() < blink) continue;
        Part part{0, pool.words};
        if (large) {
            if (looked >= kMostStarts || !has_room(b, s, p, shape.gpus, start, start + shape.steps, apart)) continue;
            open = {start, start};
            part = part_at(b, s, shape, start, apart);
            if (part.words == 0) continue;
            ++looked;
        }
        const bool all = rising || exact || limited;
        const Fit found = fit_at(b, s, shape, start, all ? start : open.first, open.last, part);
        if (found.first < 0 || guess * (1.0 + fit * found.touch) <= best.gain) continue;
        if (!exact) {
            gain = guess;
        } else {
            // The guess knows no caps; with them apps lose more, and seldom less.
            gain -= pool_penalty(b, s, p, start, start + shape.steps, shape.gpus) - s.pool_cost[p];
            if (gain * (1.0 + fit * found.touch) <= best.gain) continue;
        }
        best = {gain * (1.0 + fit * found.touch), {k, start, found.first}, {}};
    }
}

}  // namespace

Place look(const Board& b, State& s, Int k, Int low, Int high) {
    Place best;
    if (b.pool[b.shape[k].pool].by_node)
        look_on_nodes(b, s, k, low, high, 0.0, 0.0, best);
    else
        look_in_line(b, s, k, low, high, 0.0, 0.0, best);
    return best;
}

Pricing price(const Board& b, State& s, const Shape& shape, Int low, Int high) {
    const Pool& pool = b.pool[shape.pool];
    Pricing how{pool.app_last > pool.app_first, pool.named && s.heed == Heed::apart,
                pool.named && s.heed == Heed::exact, count_shut(b, s, shape)};
    if (how.wanted) price_block(b, s, shape.pool, shape.gpus, low, high + shape.steps, how.apart);
    return how;
}

// An app that never enters a GPU needs only to leave those that jobs take: by step t at most cap · (t + 1) of
// them. That is enough for a legal plan, and no plan can do with less (rule 4).
bool keeps_caps(const Board& b, State& s, Int p, Int start, Int first, Int size) {
    const Pool& pool = b.pool[p];
    for (Int a = pool.app_first; a < pool.app_last; ++a) {
        const App& app = b.app[a];
        if (app.cap == 0 || app.held_count <= app.cap * (start + 1)) continue;
        const Word* held = b.held_of(a);
        bool hit = false;
        for (Int k = first >> 6; k <= (first + size - 1) >> 6; ++k) hit |= (held[k] & span(k, first, size)) != 0;
        if (!hit) continue;
        const Int last = std::min(b.steps, (app.held_count - 1) / app.cap + 1);
        // Held GPUs whose first job starts by step t: those not free in some step up to t.
        std::fill_n(s.hit.begin(), pool.words, 0);
        for (Int t = 0; t < last; ++t) {
            Int taken = 0;
            for (Int k = 0; k < pool.words; ++k) {
                Word busy = ~s.free[pool.row + t * pool.words + k];
                if (t >= start) busy |= span(k, first, size);
                s.hit[k] |= busy & held[k];
                taken += ones(s.hit[k]);
            }
            if (taken > app.cap * (t + 1)) return false;
        }
    }
    return true;
}

bool may_start(const Board& b, const Shape& shape, Int start, Int first) {
    const Pool& pool = b.pool[shape.pool];
    if (!has(b.legal.data() + pool.legal + shape.log * pool.words, first)) return false;
    if (!pool.drains && shape.within < 0) return true;
    for (Int k = first >> 6; k <= (first + shape.gpus - 1) >> 6; ++k) {
        const Word bits = span(k, first, shape.gpus);
        Word set = bits;
        bar(b, shape, start, {k, 1}, &set);
        if (set != bits) return false;
    }
    return true;
}

// Put a job where its marginal objective · (1 + fit · contact) is largest; whether any place gains.
//
// With probability `blink` a shape or a start is ignored, so that repairs differ. Only blocks that meet the steps
// from `since` to `until` (exclusive) are looked at.
bool insert(const Board& b, State& s, Int j, double fit, double blink, Int since, Int until) {
    Place best;
    const Job& job = b.job[j];
    const Int first = ready(b, s, j);
    for (Int k = job.shape_first; k < job.shape_last; ++k) {
        const Shape& shape = b.shape[k];
        const Int low = std::max(first, since - shape.steps + 1);
        const Int high = std::min(shape.latest, until - 1);
        if (low > high) continue;
        const double counts = s.thrift == 0.0 ? 1.0 : std::exp(s.thrift * shape.thrift);
        best.gain /= counts;
        const bool tried = b.worth(shape, low) * (1.0 + fit) > best.gain &&
                           !(blink > 0.0 && job.shape_last - job.shape_first > 1 && s.random.uniform() < kSkipShape);
        if (tried && b.pool[shape.pool].by_node)
            look_on_nodes(b, s, k, low, high, fit, blink, best);
        else if (tried)
            look_in_line(b, s, k, low, high, fit, blink, best);
        best.gain *= counts;
    }
    if (best.spot.shape < 0) return false;
    put(b, s, j, best.spot, best.pieces);
    const Int p = b.shape[best.spot.shape].pool;
    if (b.pool[p].binned() && b.pool[p].named && s.heed != Heed::apart && !evicts_in_time(b, s, j)) {
        lift(b, s, j);
        return false;
    }
    if (b.pool[p].named && s.heed == Heed::exact) s.pool_cost[p] = pool_penalty(b, s, p);
    return true;
}

}  // namespace tidegrid::fast
