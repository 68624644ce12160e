// Sets of GPUs as words of 64 bits.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace tidegrid::fast {

using Int = std::int64_t;
using Word = std::uint64_t;

constexpr Word kAll = ~Word{0};

inline Int ones(Word word) { return std::popcount(word); }
inline Int lowest(Word word) { return std::countr_zero(word); }
inline Int highest(Word word) { return 63 - std::countl_zero(word); }

// Bits of the GPUs first … first + size - 1 that lie in a word.
inline Word span(Int word, Int first, Int size) {
    const Int low = std::max<Int>(first - 64 * word, 0);
    const Int high = std::min<Int>(first + size - 64 * word, 64);
    if (high <= low) return 0;
    return (kAll >> (64 - (high - low))) << low;
}

inline bool has(const Word* set, Int gpu) { return (set[gpu >> 6] >> (gpu & 63)) & 1; }

inline Int size_of(const Word* set, Int words) {
    Int total = 0;
    for (Int k = 0; k < words; ++k) total += ones(set[k]);
    return total;
}

inline void fill(Word* set, Int first, Int size) {
    for (Int k = first >> 6; k <= (first + size - 1) >> 6; ++k) set[k] |= span(k, first, size);
}

// Turn a set into the first GPUs of its legal blocks of 2^log_size GPUs; returns whether there is one.
bool runs(Word* set, Int words, Int log_size, const Word* legal);

// Sets that stay free for `length` rows, for every first row low … high.
//
// `free` holds `rows` sets, `stride` words apart, of which `words` words are looked at and packed into `out`;
// what lies past the last row is free. What is in `shut`, where it is given, does not count as free.
// The sliding AND costs three operations a row whatever the length (van Herk's blocks).
void overlap(const Word* free, const Word* shut, Int stride, Int words, Int rows, Int length, Int low, Int high,
             Word* out);

}  // namespace tidegrid::fast
