#include "timeline.hpp"

namespace tidegrid::queue {

namespace {

using fast::has;

void clear(Set& set, Int gpu) { set[gpu >> 6] &= ~(Word{1} << (gpu & 63)); }

// First GPU from `from` on, below `end`, that is in the set (or, where `inside` is false, that is not); else `end`.
Int next(const Set& set, Int from, Int end, bool inside) {
    while (from < end) {
        const Word word = (inside ? set[from >> 6] : ~set[from >> 6]) >> (from & 63);
        if (word) return std::min(end, from + fast::lowest(word));
        from = ((from >> 6) + 1) << 6;
    }
    return end;
}

Int count(const Set& set, Int first, Int size) {
    if ((first & 63) + size <= 64) return fast::ones(set[first >> 6] >> (first & 63) << (64 - size));
    Int total = 0;
    for (Int k = first >> 6; k <= (first + size - 1) >> 6; ++k) total += fast::ones(set[k] & fast::span(k, first, size));
    return total;
}

}  // namespace

Timeline::Timeline(const tg_problem& in, Int pool)
    : gpus_(in.pool_gpus[pool]), node_(in.pool_node[pool]), by_node_(in.pool_by_node[pool] != 0) {
    Set all((gpus_ + 63) / 64, 0);
    fast::fill(all.data(), 0, gpus_);
    rows_.push_back({0, gpus_, all});
    for (Int c = 0; c < in.closed; ++c) {
        const Int* at = in.closed_at + 6 * c;
        if (at[0] != pool || at[3] >= at[4]) continue;
        if (at[5]) {
            Gpus down;
            for (Int g = at[1]; g < at[2]; ++g) down.push_back(g);
            take(down, at[3], at[4]);
        } else {
            drains_.push_back({at[1], at[2], at[3], at[4]});
            split(at[3]);
            split(at[4]);
        }
    }
}

std::size_t Timeline::row_at(Int step) const {
    const auto after = std::upper_bound(rows_.begin(), rows_.end(), step, [](Int t, const Row& row) { return t < row.begin; });
    return std::size_t(after - rows_.begin()) - 1;
}

std::size_t Timeline::split(Int step) {
    const std::size_t i = row_at(step);
    if (rows_[i].begin == step) return i;
    Row later = rows_[i];
    later.begin = step;
    rows_.insert(rows_.begin() + Int(i) + 1, std::move(later));
    return i + 1;
}

void Timeline::take(const Gpus& gpus, Int from, Int until) {
    if (gpus.empty() || from >= until) return;
    const std::size_t first = split(from), last = until >= kNever ? rows_.size() : split(until);
    for (std::size_t i = first; i < last; ++i)
        for (Int g : gpus) {
            rows_[i].free -= has(rows_[i].set.data(), g);
            clear(rows_[i].set, g);
        }
}

Set Timeline::set_of(const Gpus& gpus) const {
    Set set(rows_[0].set.size(), 0);
    for (Int g : gpus) fast::fill(set.data(), g, 1);
    return set;
}

Int Timeline::next_change(Int step) const {
    const std::size_t i = row_at(step) + 1;
    return i < rows_.size() ? rows_[i].begin : kNever;
}

bool Timeline::fits(const Task& task, Int start, const Reservation* reserved, Gpus& gpus) const {
    const Int end = start + task.steps;
    std::size_t i = row_at(start);
    Set free = rows_[i].set;
    for (++i; i < rows_.size() && rows_[i].begin < end; ++i)
        for (std::size_t k = 0; k < free.size(); ++k) free[k] &= rows_[i].set[k];
    for (const Drain& drain : drains_)
        if (drain.from <= start && start < drain.to)
            for (Int g = drain.first; g < drain.last; ++g) clear(free, g);
    if (reserved && reserved->start >= 0 && end > reserved->start)
        for (std::size_t k = 0; k < free.size(); ++k) free[k] &= ~reserved->gpus[k];
    if (!task.within.empty())
        for (std::size_t k = 0; k < free.size(); ++k) free[k] &= task.within[k];
    return choose(free, task, gpus);
}

Int Timeline::earliest(const Task& task, Int from, Gpus& gpus) const {
    std::size_t i = row_at(from);
    for (Int start = from; start + task.steps <= task.latest_end;) {
        std::size_t last = i;
        while (last + 1 < rows_.size() && rows_[last + 1].begin < start + task.steps) ++last;
        // The last row with too few GPUs bars every start up to its end.
        std::size_t short_of = last + 1;
        while (short_of > i && rows_[short_of - 1].free >= task.gpus) --short_of;
        if (short_of > i)
            i = short_of;
        else if (fits(task, start, nullptr, gpus))
            return start;
        else
            ++i;
        if (i == rows_.size()) return -1;
        start = rows_[i].begin;
    }
    return -1;
}

bool Timeline::holds(const Task& task) const {
    Set all(rows_[0].set.size(), 0);
    fast::fill(all.data(), 0, gpus_);
    if (!task.within.empty()) all = task.within;
    Gpus gpus;
    return task.nodes > 0 && choose(all, task, gpus);
}

bool Timeline::choose(const Set& free, const Task& task, Gpus& gpus) const {
    gpus.clear();
    return by_node_ ? choose_nodes(free, task, gpus) : choose_block(free, task.gpus, gpus);
}

// The tightest block: in the node with the fewest free GPUs the shortest run of them, there aligned to its size where
// it can be; a block of more than a node, from a node's first GPU on, where the least room is left. The lowest of equals.
bool Timeline::choose_block(const Set& free, Int size, Gpus& gpus) const {
    const bool inside = node_ == 0 || size <= node_;
    const Int step = inside && node_ > 0 ? node_ : gpus_, align = inside ? size : node_;
    Int best = -1, best_free = gpus_ + 1, best_room = gpus_ + 1;
    // nothing is tighter than a node, or a run, that the block fills
    for (Int low = 0; low < gpus_ && (best_free > size || best_room > size); low += step) {
        if (low = next(free, low, gpus_, true) / step * step; low >= gpus_) break;
        const Int high = std::min(low + step, gpus_), here = inside ? count(free, low, high - low) : 0;
        if (inside && (here < size || here >= best_free)) continue;
        for (Int g = next(free, low, high, true); g < high;) {
            const Int stop = next(free, g, high, false);
            const Int aligned = (g + align - 1) / align * align;
            const Int first = inside && aligned + size > stop ? g : aligned;
            const Int room = stop - (inside ? g : first);
            if (first + size <= stop && (here < best_free || room < best_room)) {
                best = first;
                best_free = here;
                best_room = room;
            }
            g = next(free, stop, high, true);
        }
    }
    for (Int g = best; best >= 0 && g < best + size; ++g) gpus.push_back(g);
    return best >= 0;
}

// The nodes with the fewest free GPUs that suffice, the lowest of equals.
bool Timeline::choose_nodes(const Set& free, const Task& task, Gpus& gpus) const {
    const Int per = task.per_node();
    std::vector<std::pair<Int, Int>> found;  // free GPUs, first GPU
    Int tightest = 0;
    for (Int low = 0; low < gpus_ && tightest < task.nodes; low += node_) {
        if (low = next(free, low, gpus_, true) / node_ * node_; low >= gpus_) break;
        const Int here = count(free, low, std::min(node_, gpus_ - low));
        if (here < per) continue;
        found.emplace_back(here, low);
        tightest += here == per;
    }
    if (Int(found.size()) < task.nodes) return false;
    std::partial_sort(found.begin(), found.begin() + task.nodes, found.end());
    for (Int k = 0; k < task.nodes; ++k) {
        const Int low = found[k].second, high = std::min(low + node_, gpus_);
        Int left = per;
        for (Int g = next(free, low, high, true); left > 0; g = next(free, g + 1, high, true), --left) gpus.push_back(g);
    }
    std::sort(gpus.begin(), gpus.end());
    return true;
}

}  // namespace tidegrid::queue
