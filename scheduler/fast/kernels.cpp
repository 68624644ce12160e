// The loops that the tests compare with plain Python, one by one.

#include "bits.hpp"
#include "native.hpp"

using namespace tidegrid::fast;
using tidegrid::Array;

extern "C" {

// Sets that stay free for `length` rows, for every first row; `free` (rows, words), `out` (rows, words).
[[gnu::visibility("default")]] bool tg_fast_overlap(Array<const Word> free, Array<Word> out, std::int64_t words,
                                                    std::int64_t length, std::int64_t low, std::int64_t high) {
    if (words < 1 || free.size % words != 0 || out.size != free.size || length < 1) return false;
    const Int rows = free.size / words;
    if (low < 0 || high < low || high >= rows) return false;
    overlap(free.data, nullptr, words, words, rows, length, low, high, out.data);
    return true;
}

// The first GPUs of blocks of 2^log_size GPUs in a set, in place.
[[gnu::visibility("default")]] bool tg_fast_runs(Array<Word> set, std::int64_t log_size, Array<const Word> legal) {
    if (set.size < 1 || legal.size != set.size || log_size < 0 || log_size > 62) return false;
    runs(set.data, set.size, log_size, legal.data);
    return true;
}

}  // extern "C"
