// SPDX-License-Identifier: Apache-2.0
#include "processors.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace anybit {

namespace {

int count_affinity() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

#if defined(__linux__)

constexpr std::size_t longest_path = 4096;

using Fields = std::vector<std::string_view>;

Fields split(std::string_view text, char separator) {
  Fields fields;
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = text.find(separator);
    fields.push_back(text.substr(0, end));
    if (end != std::string_view::npos) text.remove_prefix(end + 1);
  }
  return fields;
}

bool contains(const Fields& fields, std::string_view field) {
  return std::ranges::find(fields, field) != fields.end();
}

// Returns the start of a regular file; "" if it cannot be read. Never waits for a writer.
std::string read_text(const std::string& path) {
  constexpr std::size_t most_bytes = 1 << 20;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return "";
  std::string text;
  struct stat status{};
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode)) {
    char buffer[4096];
    for (ssize_t size = 1; size > 0 && text.size() < most_bytes;) {
      size = read(file, buffer, sizeof buffer);
      if (size > 0) text.append(buffer, static_cast<std::size_t>(size));
    }
  }
  close(file);
  return text;
}

std::optional<double> divide(std::string_view quota, std::string_view period) {
  const auto parse = [](std::string_view text) -> std::int64_t {
    std::int64_t number = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
    return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() ? number : 0;
  };
  const std::int64_t time = parse(quota), of = parse(period);  // "max" and -1: no limit
  if (time <= 0 || of <= 0) return {};
  return static_cast<double>(time) / static_cast<double>(of);
}

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

// Quota of one group, without those of the groups that hold it.
std::optional<double> read_group(const std::string& folder, bool unified) {
  if (unified) {
    const std::string text = read_text(folder + "/cpu.max");
    const Fields fields = split(first_line(text), ' ');
    return fields.size() == 2 ? divide(fields[0], fields[1]) : std::nullopt;
  }
  const std::string quota = read_text(folder + "/cpu.cfs_quota_us");
  const std::string period = read_text(folder + "/cpu.cfs_period_us");
  return divide(first_line(quota), first_line(period));
}

// Undoes the escapes of /proc/self/mountinfo: \040 for a space.
std::string unescape(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned code = 0;
    const bool escaped =
        text[i] == '\\' && i + 3 < text.size() &&
        std::from_chars(&text[i + 1], &text[i + 1] + 3, code, 8).ptr == &text[i + 1] + 3;
    plain += escaped ? static_cast<char>(code) : text[i];
    if (escaped) i += 3;
  }
  return plain;
}

// Path of a group below a mount point that shows the group `mounted`; "" for that group itself, as
// for paths outside of it: another namespace made them.
std::string locate(std::string_view group, std::string_view mounted) {
  if (mounted == "/") mounted = "";
  if (!group.starts_with(mounted)) return "";
  group.remove_prefix(mounted.size());
  while (group.ends_with('/')) group.remove_suffix(1);
  if (!group.starts_with('/') || contains(split(group, '/'), "..")) return "";
  return std::string(group);
}

// Path of the process's group in a hierarchy; none if it has none, or an impossibly long one.
std::optional<std::string_view> find_group(std::string_view memberships, bool unified) {
  for (const std::string_view line : split(memberships, '\n')) {
    const std::size_t first = line.find(':');
    if (first == std::string_view::npos) continue;
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string_view group = line.substr(second + 1);
    if (group.size() > longest_path) continue;
    if (unified ? controllers.empty() : contains(split(controllers, ','), "cpu")) return group;
  }
  return {};
}

#endif

}  // namespace

Processors find_processors(std::optional<double> quota) {
  const int count = count_affinity();
  const double limit = std::clamp(quota.value_or(count), 1.0, static_cast<double>(count));
  return {static_cast<int>(std::ceil(limit)), static_cast<int>(limit)};
}

std::optional<double> read_cpu_quota(const std::string& root) {
  std::optional<double> least;
#if defined(__linux__)
  const std::string memberships = read_text(root + "/proc/self/cgroup");
  const std::string mounts = read_text(root + "/proc/self/mountinfo");
  for (const std::string_view line : split(mounts, '\n')) {
    const Fields fields = split(line, ' ');
    const auto dash = std::ranges::find(fields, "-");
    if (fields.size() < 6 || fields.end() - dash < 4) continue;
    const bool unified = dash[1] == "cgroup2";
    if (!unified && (dash[1] != "cgroup" || !contains(split(dash[3], ','), "cpu"))) continue;
    const auto group = find_group(memberships, unified);
    if (!group) continue;
    const std::string top = root + unescape(fields[4]);
    std::string below = locate(*group, unescape(fields[3]));
    for (;;) {
      const auto quota = read_group(top + below, unified);
      if (quota && (!least || *quota < *least)) least = quota;
      if (below.empty()) break;
      below.resize(below.rfind('/'));
    }
  }
#else
  static_cast<void>(root);
#endif
  return least;
}

namespace {

const Processors& processors() {
  static const Processors available = find_processors(read_cpu_quota(""));
  return available;
}

}  // namespace

bool may_spin(int threads) { return threads <= processors().whole; }

int default_threads() { return processors().count; }

}  // namespace anybit
