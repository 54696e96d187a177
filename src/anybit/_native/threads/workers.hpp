// SPDX-License-Identifier: Apache-2.0
// Who runs the parts of a piece of work. What is to be run gets its workers as an argument: our own
// threads (pool.hpp), a host's, or the calling thread alone.
#pragma once

#include <cstdint>
#include <functional>

namespace anybit {

// The calling thread alone; those who know more threads derive from it.
class Workers {
 public:
  using Range = std::function<void(std::int64_t first, std::int64_t last)>;
  using Part = std::function<void(int)>;

  virtual ~Workers() = default;

  // Runs work(first, last) over disjoint ranges that cover [0, size). `grain` is the number of
  // elements below which a further thread costs more than it saves. `work` must not throw.
  virtual void split(std::int64_t size, std::int64_t grain, const Range& work) const {
    static_cast<void>(grain);
    work(0, size);
  }

  // Runs part(0), ..., part(parts - 1), in any order. `part` must not throw.
  virtual void run(int parts, const Part& part) const {
    for (int i = 0; i < parts; ++i) part(i);
  }
};

}  // namespace anybit
