// SPDX-License-Identifier: Apache-2.0
// A program, verified, planned and packed once, ready to run.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "_native/threads/workers.hpp"
#include "plan.hpp"
#include "program.hpp"
#include "stage.hpp"

namespace anybit::lowbit {

// Kernel and codings of an instruction.
struct StageReport {
  std::string_view instruction;
  std::string kernel;
  std::string_view source, target;  // codings; empty for an input or an output
  std::int64_t bytes = 0;           // of weights and tables
  std::int64_t multiplications = 0;
};

class Network {
 public:
  // Copies what it needs of the encoded program. Throws Error if the program is damaged.
  explicit Network(const Encoded& encoded);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // Sizes of a row, per input and output.
  using Sizes = std::vector<std::int64_t>;
  const std::vector<Sizes>& inputs() const { return inputs_; }
  const std::vector<Sizes>& outputs() const { return outputs_; }

  // Runs rows, stored contiguously in each array. Thread-safe. Throws Error for NaN where the
  // program rejects it; outputs are then undefined.
  void run(const float* const* inputs, float* const* outputs, std::int64_t rows,
           const Workers& workers) const;

  // The same in this thread; adds the seconds of each instruction.
  void run_timed(const float* const* inputs, float* const* outputs, std::int64_t rows,
                 double* seconds) const;

  // Estimated time of one thread for some rows.
  std::int64_t nanoseconds(std::int64_t rows) const { return rows * nanoseconds_per_row_; }

  std::vector<StageReport> report() const;
  std::int64_t rows_together() const { return plan_->rows; }
  std::int64_t memory() const { return plan_->bytes; }

 private:
  class Scratch;
  class Scratches;
  struct Call;

  bool turned() const;
  void run_rows(const Call& call, const Scratch& scratch, std::int64_t first,
                std::int64_t last) const;
  void run_in_rows(const Call& call, const Workers& workers, int threads) const;
  void run_in_stages(const Call& call, const Workers& workers, int threads) const;

  std::vector<Sizes> inputs_, outputs_;
  std::unique_ptr<Plan> plan_;
  Stages stages_;
  std::int64_t nanoseconds_per_row_ = 0;
  mutable std::atomic<bool> turned_{false};
  mutable std::array<std::atomic<std::byte*>, 16> spare_{};  // memory of finished runs
};

}  // namespace anybit::lowbit
