#include "bits.hpp"

namespace tidegrid::fast {

bool runs(Word* set, Int words, Int log_size, const Word* legal) {
    if (words == 1) {
        Word row = set[0];
        for (Int i = 0; i < log_size; ++i) row &= i < 6 ? row >> (Int{1} << i) : 0;
        return (set[0] = row & legal[0]) != 0;
    }
    for (Int i = 0; i < log_size; ++i) {
        const Int step = Int{1} << i;
        if (step < 64) {
            for (Int k = 0; k + 1 < words; ++k) set[k] &= (set[k] >> step) | (set[k + 1] << (64 - step));
            set[words - 1] &= set[words - 1] >> step;
        } else {
            const Int jump = step / 64;
            for (Int k = 0; k < words; ++k) set[k] &= k + jump < words ? set[k + jump] : 0;
        }
    }
    Word found = 0;
    for (Int k = 0; k < words; ++k) found |= set[k] &= legal[k];
    return found != 0;
}

void overlap(const Word* free, const Word* shut, Int stride, Int words, Int rows, Int length, Int low, Int high,
             Word* out) {
    const Int last = std::min(rows, high + length) - 1;
    // Place of the last row in its block, so that no row needs a division.
    const Int place_of_last = (last - low) % length;
    const auto row = [&](Int t, Int k) {
        return shut ? free[t * stride + k] & ~shut[t * stride + k] : free[t * stride + k];
    };
    if (low == high) {
        for (Int k = 0; k < words; ++k) {
            Word run = kAll;
            for (Int t = low; t <= last && run; ++t) run &= row(t, k);
            out[low * words + k] = run;
        }
        return;
    }
    for (Int k = 0; k < words; ++k) {
        // Backward inside each block of `length` rows: AND from a row to its block's end.
        Word run = kAll;
        Int place = place_of_last;
        for (Int t = last; t >= low; --t) {
            run &= row(t, k);
            if (t <= high) out[t * words + k] = run;
            if (--place < 0) {
                place = length - 1;
                run = kAll;
            }
        }
        // Forward: AND from a block's start to the window's last row.
        place = 0;
        for (Int t = low; t <= last; ++t) {
            if (place == 0) run = kAll;
            run &= row(t, k);
            if (const Int start = t - length + 1; start >= low) out[start * words + k] &= run;
            if (++place == length) place = 0;
        }
        // Windows that the last row cuts short and that began before its block: the rest of them.
        if (last == rows - 1) {
            const Int first = last - place_of_last;
            for (Int start = std::max(low, rows - length + 1); start <= std::min(high, first - 1); ++start)
                out[start * words + k] &= run;
        }
    }
}

}  // namespace tidegrid::fast
