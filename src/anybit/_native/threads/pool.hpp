// SPDX-License-Identifier: Apache-2.0
// Thread pool of the library.
#pragma once

#include "workers.hpp"

namespace anybit {

// Number of threads for large arrays: the number set, else ANYBIT_NUM_THREADS, else the processors
// available to this process (processors.hpp).
int num_threads();

// Throws Error unless count >= 1.
void set_num_threads(int count);

// The calling thread and the pool. Little work, or work while other threads use the pool, stays in
// the calling thread.
const Workers& pool();

// Limits the threads of parallel calls of this thread; 0 removes the limit. Returns the previous
// limit. Throws Error for a negative number.
int limit_threads(int count);

}  // namespace anybit
