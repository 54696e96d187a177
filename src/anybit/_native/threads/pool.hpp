// SPDX-License-Identifier: Apache-2.0
// The threads of our own.
#pragma once

#include "workers.hpp"

namespace anybit {

// The number of threads that large arrays are split over: what was set, else ANYBIT_NUM_THREADS,
// else the processors this process may use.
int num_threads();

// Throws Error unless count >= 1.
void set_num_threads(int count);

// This thread and the pool's. Little work, or work that arrives while other threads have the pool,
// stays in the calling thread.
const Workers& pool();

// Lets parallel calls of this thread use at most so many threads; 0: as many as all others. Returns
// what held before. Throws Error for a negative number.
int limit_threads(int count);

}  // namespace anybit
