// SPDX-License-Identifier: Apache-2.0
// Networks on threads, at every level that this processor runs: networks FILE
//
// write_networks.py makes the file: programs, inputs, and the outputs of the reference. Networks
// run alone, on threads that split every stage into as many pieces as possible, on the pool with
// concurrent callers, and with failing memory allocations of kernels.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../levels.hpp"
#include "_native/isa/levels.hpp"
#include "_native/lowbit/network.hpp"
#include "_native/threads/pool.hpp"

namespace {

thread_local bool in_piece = false;
thread_local int failing = 0;  // number of the next allocations by kernels that fail

void* memory_of(std::size_t size, std::size_t alignment) {
  if (in_piece) {
    std::fputs("a piece takes memory\n", stderr);
    std::abort();
  }
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max(alignment, sizeof(void*)), size) != 0)
    throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return memory_of(size, 16); }
void* operator new[](std::size_t size) { return memory_of(size, 16); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return memory_of(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return memory_of(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }

// Allocations of kernels may fail without ending the program.
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  if (failing > 0 && failing-- > 0) return nullptr;
  void* memory = nullptr;
  const auto boundary = static_cast<std::size_t>(alignment);
  return posix_memalign(&memory, boundary, size) == 0 ? memory : nullptr;
}

namespace {

using namespace anybit;
using lowbit::Network;
using Arrays = std::vector<std::vector<float>>;

class File {
 public:
  explicit File(const char* path) : stream_(path, std::ios::binary) {}

  std::int64_t number() {
    std::int64_t value = 0;
    stream_.read(reinterpret_cast<char*>(&value), sizeof value);
    if (!stream_) throw std::runtime_error("the file ends too early");
    return value;
  }
  template <class Element>
  std::vector<Element> array() {
    std::vector<Element> elements(static_cast<std::size_t>(number()));
    stream_.read(reinterpret_cast<char*>(elements.data()),
                 static_cast<std::streamsize>(elements.size() * sizeof(Element)));
    return elements;
  }
  Arrays arrays() {
    Arrays all(static_cast<std::size_t>(number()));
    for (auto& values : all) values = array<float>();
    return all;
  }

 private:
  std::ifstream stream_;
};

struct Case {
  std::vector<std::int64_t> words;
  std::vector<std::uint8_t> bytes;
  std::vector<std::int32_t> integers;
  std::vector<float> floats;
  std::int64_t rows;
  Arrays inputs, outputs;

  explicit Case(File& file)
      : words(file.array<std::int64_t>()),
        bytes(file.array<std::uint8_t>()),
        integers(file.array<std::int32_t>()),
        floats(file.array<float>()),
        rows(file.number()),
        inputs(file.arrays()),
        outputs(file.arrays()) {}

  bool holds(const Network& network, const Workers& workers) const {
    Arrays made = outputs;
    std::vector<const float*> from;
    std::vector<float*> to;
    for (const auto& values : inputs) from.push_back(values.data());
    for (auto& values : made) {
      std::fill(values.begin(), values.end(), -77.0f);
      to.push_back(values.data());
    }
    network.run(from.data(), to.data(), rows, workers);
    for (std::size_t i = 0; i < made.size(); ++i)
      for (std::size_t k = 0; k < made[i].size(); ++k)
        if (std::memcmp(&made[i][k], &outputs[i][k], 4) != 0 && made[i][k] == made[i][k])
          return false;
    return true;
  }
};

// The pool, which regards every piece as worth a thread.
class Cutting final : public Workers {
 public:
  int threads() const override { return pool().threads(); }
  std::int64_t serial_nanoseconds() const override { return 0; }
  std::int64_t piece_nanoseconds() const override { return 1; }
  void run_stages(std::span<const int> pieces, std::int64_t, const Piece& piece) const override {
    constexpr std::int64_t worth_waking = 1'000'000'000;
    pool().run_stages(pieces, worth_waking, [&](int stage, int number) noexcept {
      in_piece = true;
      piece(stage, number);
      in_piece = false;
    });
  }
};

bool all_hold(const Case& test, const Network& network) {
  const Cutting cutting;
  bool concurrent[2] = {}, poor[3] = {};
  const bool alone = test.holds(network, Workers());
  {
    std::thread one([&] { concurrent[0] = test.holds(network, cutting); });
    std::thread other([&] { concurrent[1] = test.holds(network, pool()); });
    one.join(), other.join();
  }
  const bool cut = test.holds(network, cutting);
  for (int i = 0; i < 3; ++i)
    std::thread([&] {
      failing = i;
      poor[i] = test.holds(network, Workers());
    }).join();
  if (alone && cut && concurrent[0] && concurrent[1] && poor[0] && poor[1] && poor[2]) return true;
  std::printf("alone %d, cut %d, concurrent %d %d, without memory %d %d %d: ", alone, cut,
              concurrent[0], concurrent[1], poor[0], poor[1], poor[2]);
  return false;
}

int test(const char* path) {
  set_num_threads(4);
  File file(path);
  const std::int64_t count = file.number();
  std::int64_t wrong = 0, runs = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const Case test(file);
    for (const std::string_view name : all_levels) {
      try {
        select_level(name);
      } catch (const Error&) {
        continue;
      }
      const Network network({test.words, test.bytes, test.integers, test.floats});
      ++runs;
      if (all_hold(test, network)) continue;
      std::printf("network %d at %.*s\n", int(i), int(name.size()), name.data());
      ++wrong;
    }
  }
  std::printf("%d networks, %d of %d wrong\n", int(count), int(wrong), int(runs));
  return wrong > 0 || runs == 0;
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return std::fputs("networks FILE\n", stderr), 2;
  return test(words[1]);
}
