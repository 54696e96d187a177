// SPDX-License-Identifier: Apache-2.0
#include "pool.hpp"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "crew.hpp"
#include "ops/types.hpp"
#include "processors.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace anybit {

namespace {

// More threads than any machine has: a larger number is a mistake.
constexpr int most_threads = 1024;

int initial_threads() {
  const char* text = std::getenv("ANYBIT_NUM_THREADS");
  if (text == nullptr || *text == '\0') return default_threads();
  int count = 0;
  const char* end = text + std::strlen(text);
  const auto parsed = std::from_chars(text, end, count);
  if (parsed.ec != std::errc() || parsed.ptr != end || count < 1 || count > most_threads)
    throw Error(Error::Kind::value, "ANYBIT_NUM_THREADS must be an integer from 1 to " +
                                        std::to_string(most_threads) + ", got '" + text + "'");
  return count;
}

std::atomic<int> requested_threads{0};
thread_local int thread_limit = 0;

// Number of threads that a call from this thread may use.
int allowed_threads() {
  return thread_limit > 0 ? std::min(thread_limit, num_threads()) : num_threads();
}

// Threads that wait for one job at a time. Never destroyed: at process exit its threads may still
// wait.
class Pool {
 public:
  // Runs all parts of the job, helped by `helpers` threads.
  void run(int helpers, int parts, const Workers::Part& part) {
    {
      const std::lock_guard lock(mutex_);
      while (started_ < helpers) {
        try {
          std::thread([this, number = started_] { serve(number); }).detach();
        } catch (const std::system_error&) {
          break;  // no more threads available: work with the existing ones
        }
        ++started_;
      }
      part_ = &part;
      parts_ = parts;
      next_ = 0;
      admitted_ = std::min(helpers, started_);
      ++job_;
    }
    wake_.notify_all();
    work(part, parts);
    std::unique_lock lock(mutex_);
    admitted_ = 0;  // helpers that have not woken yet must not enter
    idle_.wait(lock, [this] { return busy_ == 0; });
  }

  std::mutex in_use;

 private:
  void work(const Workers::Part& part, int parts) {
    for (int i = next_.fetch_add(1); i < parts; i = next_.fetch_add(1)) part(i);
  }

  void serve(int number) {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return job_ != seen; });
      seen = job_;
      if (number >= admitted_) continue;
      ++busy_;
      const auto* part = part_;
      const int parts = parts_;
      lock.unlock();
      work(*part, parts);
      lock.lock();
      if (--busy_ == 0) idle_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::atomic<int> next_{0};
  const Workers::Part* part_ = nullptr;
  int parts_ = 0, started_ = 0, admitted_ = 0, busy_ = 0;
  std::uint64_t job_ = 0;
};

// A crew for one caller at a time. Never destroyed, like the pool.
struct SharedCrew {
  Crew crew;
  std::mutex in_use;
};

template <class Threads>
std::atomic<Threads*> current{nullptr};

// Pool and crew of this process. Threads do not survive fork: a child starts its own.
template <class Threads>
Threads& shared() {
  Threads* existing = current<Threads>.load();
  if (existing != nullptr) return *existing;
#if defined(__unix__) || defined(__APPLE__)
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { current<Threads>.store(nullptr); });
  static_cast<void>(registered);
#endif
  auto* fresh = new Threads;
  if (current<Threads>.compare_exchange_strong(existing, fresh)) return *fresh;
  delete fresh;
  return *existing;
}

}  // namespace

int num_threads() {
  const int requested = requested_threads.load();
  if (requested > 0) return requested;
  const int initial = initial_threads();
  requested_threads.store(initial);
  return initial;
}

void set_num_threads(int count) {
  if (count < 1 || count > most_threads)
    throw Error(Error::Kind::value, "num_threads must be an integer from 1 to " +
                                        std::to_string(most_threads) + ", got " +
                                        std::to_string(count));
  requested_threads.store(count);
}

namespace {

class PoolWorkers final : public Workers {
 public:
  void split(std::int64_t size, std::int64_t grain, const Range& work) const override;
  void run(int parts, const Part& part) const override;
  int threads() const override { return allowed_threads(); }
  void run_stages(std::span<const int> pieces, std::int64_t nanoseconds,
                  const Piece& piece) const override;
};

void PoolWorkers::split(std::int64_t size, std::int64_t grain, const Range& work) const {
  const std::int64_t most = std::max<std::int64_t>(1, size / grain);
  const int threads = static_cast<int>(std::min<std::int64_t>(allowed_threads(), most));
  if (threads == 1) return work(0, size);
  Pool& threads_of_all = shared<Pool>();
  const std::unique_lock lock(threads_of_all.in_use, std::try_to_lock);
  if (!lock.owns_lock()) return work(0, size);
  // Several parts per thread, so that a slow processor does not delay the rest; whole cache lines.
  const std::int64_t parts = std::min<std::int64_t>(4 * threads, most);
  const std::int64_t length = ((size + parts - 1) / parts + 63) / 64 * 64;
  threads_of_all.run(threads - 1, static_cast<int>(parts), [&](int part) noexcept {
    const std::int64_t first = std::min(size, part * length);
    work(first, std::min(size, first + length));
  });
}

void PoolWorkers::run(int parts, const Part& part) const {
  const int threads = std::min(allowed_threads(), parts);
  if (threads > 1) {
    Pool& threads_of_all = shared<Pool>();
    const std::unique_lock lock(threads_of_all.in_use, std::try_to_lock);
    if (lock.owns_lock()) return threads_of_all.run(threads - 1, parts, part);
  }
  Workers::run(parts, part);
}

void PoolWorkers::run_stages(std::span<const int> pieces, std::int64_t nanoseconds,
                             const Piece& piece) const {
  // Waking a thread costs the caller about 10 us, and the thread starts after as long again.
  constexpr std::int64_t worth_waking = 100'000;
  const int helpers = allowed_threads() - 1;
  if (helpers > 0) {
    SharedCrew& shared_crew = shared<SharedCrew>();
    const std::unique_lock lock(shared_crew.in_use, std::try_to_lock);
    if (lock.owns_lock())
      return shared_crew.crew.run({helpers, nanoseconds >= worth_waking, may_spin(helpers + 1)},
                                  pieces, piece);
  }
  Workers::run_stages(pieces, nanoseconds, piece);
}

}  // namespace

const Workers& pool() {
  // Never destroyed: at process exit threads may still be at work.
  static const Workers& workers = *new PoolWorkers;
  return workers;
}

int limit_threads(int count) {
  if (count < 0)
    throw Error(Error::Kind::value,
                "the limit of threads must be an integer >= 0, got " + std::to_string(count));
  return std::exchange(thread_limit, count);
}

}  // namespace anybit
