// SPDX-License-Identifier: Apache-2.0
// Processors that this process may use: its CPU affinity, within the CPU quota of its container.
#pragma once

#include <optional>
#include <string>

namespace anybit {

struct Processors {
  int count = 1;  // threads that are worth starting; a part of a processor counts
  int whole = 1;  // threads that may spin; a part of a processor does not count
};

// Processors of the calling thread's affinity, within `quota` processors; at least one.
Processors find_processors(std::optional<double> quota);

// The smallest CPU quota, in processors, of the control groups (cgroup v1 and v2) of this process;
// none without a limit. Files that are missing, unreadable or malformed set no limit. `root` is
// the folder that holds /proc and the mount points: "" except in tests.
std::optional<double> read_cpu_quota(const std::string& root);

// Whether this many threads each have a processor of their own, so that one that waits for another
// may spin. Affinity and quota are read once.
bool may_spin(int threads);

// Number of threads by affinity and quota, read once.
int default_threads();

}  // namespace anybit
