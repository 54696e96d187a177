// SPDX-License-Identifier: Apache-2.0
// The weights of a product: unpacked from the program, matched to a kernel, packed for it.
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "_native/isa/levels.hpp"
#include "packed_product.hpp"
#include "product_kernels.hpp"
#include "program.hpp"

namespace anybit::lowbit {

inline constexpr std::size_t large_page = std::size_t{2} << 20;

// Asks for large pages for memory that has some: kernels read it faster from beyond the caches.
inline void prefer_large_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__)
  // A hint: nothing depends on its success.
  if (bytes >= large_page) (void)madvise(data, bytes / large_page * large_page, MADV_HUGEPAGE);
#endif
}

// Zeroed memory, aligned to `alignment` or to large pages, followed by `slack` bytes.
template <class T>
class Aligned {
 public:
  Aligned() = default;
  explicit Aligned(std::int64_t size)
      : size_(size),
        data_(static_cast<T*>(::operator new[](bytes() + slack, boundary_of(bytes()))),
              Delete{boundary_of(bytes())}) {
    prefer_large_pages(data_.get(), bytes());
    std::memset(static_cast<void*>(data_.get()), 0, bytes() + slack);
  }
  T* data() const { return data_.get(); }
  T& operator[](std::int64_t i) const { return data_.get()[i]; }
  T* from(std::int64_t i) const { return size_ == 0 ? nullptr : data() + i; }
  std::int64_t size() const { return size_; }
  std::size_t bytes() const { return static_cast<std::size_t>(size_) * sizeof(T); }

 private:
  static std::align_val_t boundary_of(std::size_t bytes) {
    return std::align_val_t{bytes < large_page ? static_cast<std::size_t>(alignment) : large_page};
  }
  struct Delete {
    std::align_val_t boundary{};
    void operator()(T* data) const { ::operator delete[](data, boundary); }
  };
  std::int64_t size_ = 0;
  std::unique_ptr<T[], Delete> data_;
};

// Weights in the order target channel, kernel row, kernel column, source channel of the group.
struct Weights {
  std::vector<std::int8_t> values;
  std::int64_t channels = 0, taps = 0, inner = 0;  // inner: source channels per group

  Weights(const Product& product, std::int64_t channels, std::int64_t source_channels);
  const std::int8_t* of(std::int64_t channel) const { return &values[index(channel, 0)]; }
  const std::int8_t* of(std::int64_t channel, std::int64_t tap) const {
    return &values[index(channel, tap)];
  }

 private:
  std::size_t index(std::int64_t channel, std::int64_t tap) const {
    return static_cast<std::size_t>((channel * taps + tap) * inner);
  }
};

// Properties of the weights that kernels exploit. A unit is the v of a channel in the bit schemes.
struct WeightForm {
  bool bipolar = true, ternary = true, two_bits = true;  // required by xor, ternary and and2
  std::vector<int> units;                                // largest magnitude of each channel
  std::vector<std::int8_t> set;                          // distinct weights, and 0
  int largest = 0;

  explicit WeightForm(const Weights& weights);
  // Whether weights have two values at most.
  bool has_two() const;
};

// Returns the fastest scheme of a level for a source coding: a dot product or depthwise scheme for
// bytes. Throws Error if bits or planes have none.
Scheme select_scheme(const ProductTask& task, const WeightForm& form, Coding coding, Level level);

// Returns the number of products of index and weight whose sum fits 16 bits.
std::int64_t terms_in_16_bits(const ProductTask& task, const WeightForm& form);

// Returns the source coding of the fastest scheme.
Coding select_coding(const ProductTask& task, const WeightForm& form, Level level);

// Memory layout of the reduction axis of an output: `count` runs of `taps` contiguous taps.
struct Runs {
  std::int64_t count = 1, taps = 1;  // per run
};

struct PackedWeights {
  Aligned<std::byte> bytes;
  std::ptrdiff_t panel = 0;
  int steps = 0;
  std::int8_t values[16] = {};
  int most_extras = 0;  // see split_pairs
};

// Channels of a panel: the first one, and their number.
struct PanelChannels {
  std::int64_t first = 0;
  int count = 0;
};

// Order of the weights of `depthwise`. Pairs of taps are interleaved, and stored in the order in
// which kernels/depthwise_pairs.hpp holds 32 channels.
enum class TapOrder : std::uint8_t {
  single,      // 16 bits: [32 channels][tap][32]
  pairs,       // 16 bits
  byte_pairs,  // 8 bits
};

struct Packing {
  int dot_bytes = 4;  // see ProductKernels
  TapOrder tap_order = TapOrder::single;
  int tap_panels = 1;  // see ProductKernels
};

// Returns zeroed memory. Throws Error if it exceeds `most`.
Aligned<std::byte> room_for(std::int64_t bytes, std::int64_t most);

// Throws Error if the packed weights exceed `most_bytes`.
PackedWeights pack_weights(Scheme scheme, const Weights& weights, const WeightForm& form,
                           const Runs& runs, const std::vector<PanelChannels>& panels,
                           const Packing& packing, std::int64_t most_bytes);

// Splits the steps of 8-bit weights in which the sum of two adjacent products may exceed 16 bits:
// half of each weight stays, the other halves follow as extra steps. A panel ends with the extra
// weights, the offsets of their activations (int64) and their number, each for `most_extras` steps.
// Returns whether few enough steps need it; if not, nothing changes. `segments` are the offsets of
// the runs.
bool split_pairs(PackedWeights& weights, std::int64_t panels,
                 const std::vector<std::ptrdiff_t>& segments, const ProductTask& task);

// Stores weights of `wide8` with 16 bits: of each step the even bytes, then the odd ones.
void widen_weights(PackedWeights& weights, std::int64_t most_bytes);

}  // namespace anybit::lowbit
