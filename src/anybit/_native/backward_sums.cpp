// SPDX-License-Identifier: Apache-2.0
// Adding up the gradients of parameters. Where the prepared parameters are in a table, so are the
// sums, entry by entry; without a table the sums are the parameter's own elements.
#include <algorithm>
#include <numeric>

#include "backward.hpp"

namespace anybit {

namespace {

// The sums of a chunk are added in one thread; there are so many chunks that threads find work,
// and so few that putting them together costs nothing.
constexpr std::int64_t elements_per_chunk = 64 * 1024;
constexpr std::int64_t most_chunks = 64;

// Without a table, parameters with more elements are shared by all chunks.
constexpr std::int64_t most_own_elements = 4096;

std::int64_t count_of(const Tensor& tensor) {
  return std::accumulate(tensor.shape, tensor.shape + tensor.rank, std::int64_t{1},
                         std::multiplies<>());
}

template <class T>
void add_strided(const void* values, std::int64_t length, double* elements, std::int64_t step) {
  for (std::int64_t i = 0; i < length; ++i)
    elements[i * step] += static_cast<double>(static_cast<const T*>(values)[i]);
}

}  // namespace

// Notes which parameters' gradients are wanted, and returns their bits.
std::uint32_t Backward::plan_sums(const Gradients& gradients) {
  std::uint32_t summed = 0;
  for (std::size_t product = 1; product < op_.differentiable.size(); ++product) {
    const int input = op_.differentiable[product];
    const Tensor& gradient = gradients.of_inputs[static_cast<std::size_t>(input)];
    if (!gradient.given) continue;
    summed |= 1u << (input - 1);
    const std::int64_t count = count_of(gradient);
    sums_.push_back({input - 1, static_cast<int>(product) - 1, gradient, count, 0, {}});
  }
  return summed;
}

// Splits the elements into chunks, by what is summed and never by the number of threads.
void Backward::plan_chunks() {
  bool shared = false, split = true;
  for (Sum& sum : sums_) {
    sum.offset = chunk_sums_;
    const bool own = plane_ > 0 || sum.count <= most_own_elements;
    if (own) {
      chunk_sums_ += plane_ > 0 ? entries_ : sum.count;
    } else if (!meets_one(sum)) {
      sum.total.resize(static_cast<std::size_t>(sum.count), nothing);
      shared = true;
      // No two chunks may add to the same element.
      split = split && loop_[0].targets[sum.parameter] != 0;
    }
  }
  // All chunks' sums together stay small beside x.
  const std::int64_t room = size() * element_size() / (32 * std::max<std::int64_t>(1, chunk_sums_));
  const std::int64_t wanted = std::min({size() / elements_per_chunk, most_chunks, room});
  const std::int64_t chunks = split ? std::max<std::int64_t>(1, wanted) : 1;
  chunk_ = (size() + chunks - 1) / chunks;
  const std::int64_t unit = shared ? size() / loop_[0].size : row_ < chunk_ ? row_ : block;
  chunk_ = (chunk_ + unit - 1) / unit * unit;
}

// Adds the products of the rows from a place on to the sums.
void Backward::add_products(const Position& at, std::int64_t first, const Rows& rows, double* sums,
                            const Buffers& buffers) {
  const int wide = float64_ ? 1 : 0;
  for (Sum& sum : sums_) {
    const char* const products =
        reinterpret_cast<const char*>(buffers.products) + sum.product * block * element_size();
    if (plane_ > 0) {
      const std::int64_t entry = at.table + (period_ == 0 ? 0 : first % period_);
      (period_ == 0 ? gradients_.sum : gradients_.add)[wide](
          products, rows.length, rows.rows, sums + sum.offset + entry, rows.prepared_step);
    } else {
      const std::int64_t step = inner().targets[sum.parameter];
      add_to_elements(sum, at.targets[sum.parameter] + first * step, step, rows.length, products,
                      sums);
    }
  }
}

void Backward::add_to_elements(Sum& sum, std::int64_t first, std::int64_t step, std::int64_t length,
                               const void* products, double* sums) {
  const int wide = float64_ ? 1 : 0;
  const bool own = sum.count <= most_own_elements;
  if (!own && meets_one(sum)) {
    const std::int64_t size = size_of(sum.gradient.type);
    char* const elements = static_cast<char*>(sum.gradient.data);
    set_.store[static_cast<int>(sum.gradient.type)][wide](products, length, elements + first * size,
                                                          step * size);
    return;
  }
  double* const elements = (own ? sums + sum.offset : sum.total.data()) + first;
  if (step == 0) gradients_.sum[wide](products, length, 1, elements, 0);
  else if (step == 1) gradients_.add[wide](products, length, 1, elements, 0);
  else (float64_ ? add_strided<double> : add_strided<float>)(products, length, elements, step);
}

// Rounds the sums to the gradients' types.
void Backward::deliver(const std::vector<double>& sums) {
  for (Sum& sum : sums_) {
    const bool own = plane_ > 0 || sum.count <= most_own_elements;
    if (!own && meets_one(sum)) continue;
    if (sum.total.empty())
      sum.total.resize(static_cast<std::size_t>(sum.count), size() == 0 ? 0 : nothing);
    const double* const found = sums.data() + sum.offset;
    if (plane_ > 0) add_entries(found, sum.parameter, sum.total.data());
    else if (own && size() > 0) std::copy_n(found, sum.count, sum.total.data());
    set_.store[static_cast<int>(sum.gradient.type)][1](
        sum.total.data(), sum.count, sum.gradient.data, size_of(sum.gradient.type));
  }
}

}  // namespace anybit
