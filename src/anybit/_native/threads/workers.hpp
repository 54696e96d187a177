// SPDX-License-Identifier: Apache-2.0
// Who runs the parts of a piece of work. What is to be run gets its workers as an argument: our own
// threads (pool.hpp), a host's, or the calling thread alone.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace anybit {

// The calling thread alone; those who know more threads derive from it.
class Workers {
 public:
  using Range = std::function<void(std::int64_t first, std::int64_t last)>;
  using Part = std::function<void(int)>;

  using Piece = std::function<void(int stage, int piece)>;

  // A stage has no more pieces.
  static constexpr int most_pieces = 64;

  virtual ~Workers() = default;

  // How many threads may take part in a call of `run_stages`.
  virtual int threads() const { return 1; }

  // What a piece of a stage must take to be worth another thread.
  virtual std::int64_t piece_nanoseconds() const { return 2000; }

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

  // Runs piece(stage, 0), ..., piece(stage, pieces[stage] - 1) of all stages, of which none begins
  // before the one before it has ended. `nanoseconds` is roughly what one thread needs for all of
  // it. `piece` must not throw.
  virtual void run_stages(std::span<const int> pieces, std::int64_t nanoseconds,
                          const Piece& piece) const {
    static_cast<void>(nanoseconds);
    for (std::size_t stage = 0; stage < pieces.size(); ++stage)
      for (int i = 0; i < pieces[stage]; ++i) piece(static_cast<int>(stage), i);
  }
};

}  // namespace anybit
