// What every kernel of the native core shares: how an array of Python's arrives.
#pragma once

#include <cstdint>
#include <span>

namespace tidegrid {

// One contiguous array as `tidegrid.native` passes it, by value; its size travels with it. In C++ it is a std::span.
template <class T>
struct Array {
    T* data;
    std::int64_t size;

    operator std::span<T>() const { return {data, static_cast<std::size_t>(size)}; }
    std::span<T> span() const { return *this; }
};

}  // namespace tidegrid

// Functions that Python calls stand in an extern "C" block and carry this attribute; all else stays hidden:
//     extern "C" [[gnu::visibility("default")]] void tg_name(tidegrid::Array<const double> x, …)
