// SPDX-License-Identifier: Apache-2.0
// Splitting work over the processors of this process.
#pragma once

#include <cstdint>
#include <functional>

namespace anybit {

// The number of threads that large arrays are split over: what was set, else ANYBIT_NUM_THREADS,
// else the processors this process may use.
int num_threads();

// Throws Error unless count >= 1.
void set_num_threads(int count);

// Runs work(first, last) over disjoint ranges that cover [0, size), in this thread and others.
// Ranges are not shorter than `grain`; little work, or work that arrives while other threads have
// the pool, stays in the calling thread. `work` must not throw.
void parallel_for(std::int64_t size, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& work);

// Runs part(0), ..., part(parts - 1) likewise.
void parallel_parts(int parts, const std::function<void(int)>& part);

// Lets parallel calls of this thread use at most so many threads; 0: as many as all others. Returns
// what held before. Throws Error for a negative number.
int limit_threads(int count);

}  // namespace anybit
