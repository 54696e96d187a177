// SPDX-License-Identifier: Apache-2.0
// A smooth function of a real number through points, which ends in a line.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace anybit::lowbit {

// A value of the curve, less the zero, and how much it counts.
struct CurvePoint {
  double place = 0, value = 0, weight = 1;
};

// A cubic spline with equal intervals through points, as smooth as these allow.
class Spline {
 public:
  // Fits the spline; false if its equations have no solution.
  bool fit(const std::vector<CurvePoint>& points) {
    const auto [low, high] = std::ranges::minmax_element(points, {}, &CurvePoint::place);
    low_ = low->place, step_ = (high->place - low_) / intervals;
    if (!(step_ > 0)) return false;
    rows_.assign(size, {});
    values_.fill(0);
    double weight = 0;
    for (const CurvePoint& point : points) {
      int first = 0;
      const auto weights = weights_at(point.place, first);
      add(first, weights.data(), point.weight, point.value);
      weight += point.weight;
    }
    constexpr double differences[] = {1, -3, 3, -1};
    for (int first = 0; first + 4 <= size; ++first) add(first, differences, smoothness * weight, 0);
    return solve();
  }

  double at(double place) const {
    int first = 0;
    const auto weights = weights_at(place, first);
    double value = 0;
    for (int i = 0; i < 4; ++i) value += weights[i] * values_[first + i];
    return value;
  }
  double slope_at(double place) const {
    return (at(place + step_ / 16) - at(place - step_ / 16)) / (step_ / 8);
  }

  double low() const { return low_; }
  double high() const { return low_ + step_ * intervals; }

 private:
  static constexpr int intervals = 64, size = intervals + 3;
  static constexpr double smoothness = 1e-8;

  std::array<double, 4> weights_at(double place, int& first) const {
    const double x = (place - low_) / step_;
    first = x > 0 ? static_cast<int>(std::min(x, intervals - 1.0)) : 0;  // 0 for NaN, too
    const double u = x - first, v = 1 - u;
    return {v * v * v / 6, (3 * u * u * u - 6 * u * u + 4) / 6, (3 * v * v * v - 6 * v * v + 4) / 6,
            u * u * u / 6};
  }

  // Adds factor * (weights * coefficients - value)^2. rows_[i][j] is the matrix at (i, i - j).
  void add(int first, const double* weights, double factor, double value) {
    for (int i = 0; i < 4; ++i) {
      values_[first + i] += factor * weights[i] * value;
      for (int j = 0; j <= i; ++j) rows_[first + i][i - j] += factor * weights[i] * weights[j];
    }
  }

  // Cholesky decomposition of a band.
  bool solve() {
    for (int i = 0; i < size; ++i)
      for (int j = std::min(i, 3); j >= 0; --j) {
        double rest = rows_[i][j];
        for (int k = 1; j + k <= std::min(i, 3); ++k) rest -= rows_[i][j + k] * rows_[i - j][k];
        if (j == 0 && !(rest > 0)) return false;
        rows_[i][j] = j == 0 ? std::sqrt(rest) : rest / rows_[i - j][0];
      }
    for (int i = 0; i < size; ++i) {
      for (int j = 1; j <= std::min(i, 3); ++j) values_[i] -= rows_[i][j] * values_[i - j];
      values_[i] /= rows_[i][0];
    }
    for (int i = size - 1; i >= 0; --i) {
      for (int j = 1; j <= std::min(size - 1 - i, 3); ++j)
        values_[i] -= rows_[i + j][j] * values_[i + j];
      values_[i] /= rows_[i][0];
    }
    return true;
  }

  double low_ = 0, step_ = 0;
  std::vector<std::array<double, 4>> rows_;
  std::array<double, size> values_{};
};

// A spline, and a line from its tail on.
class CurveShape {
 public:
  // Values above `most` belong to channels with smaller scales. False if there is no solution.
  bool fit(std::vector<CurvePoint> points, double most) {
    most_ = most;
    if (!spline_.fit(points)) return false;
    high_ = spline_.high();
    find_line();
    for (int round = 0; round < rounds; ++round) {
      const double end = tail_ + (tail_ - low()) / 8;
      if (!(end < spline_.high())) break;
      std::erase_if(points, [&](const CurvePoint& point) { return point.place > end; });
      if (!spline_.fit(points)) return false;
      move_tail();
    }
    return true;
  }

  double at(double place) const {
    return place < tail_ ? spline_.at(place) : value_ + slope_ * (place - tail_);
  }
  double slope_at(double place) const { return place < tail_ ? spline_.slope_at(place) : slope_; }

  double low() const { return spline_.low(); }
  double tail() const { return tail_; }
  double tail_slope() const { return slope_; }

 private:
  static constexpr int rounds = 2, samples = 256;
  static constexpr double most_off = 3e-4;

  double off(double place) const {
    const double line = value_ + slope_ * (place - tail_);
    return std::abs(spline_.at(place) - line) / std::max(1.0, std::abs(line) / most_);
  }

  // Least squares of the last part of the spline; shorter ones if it is not a line.
  void find_line() {
    for (int length = samples / 2; length >= samples / 32; length /= 2) {
      const double step = (high_ - low()) / samples, start = high_ - length * step;
      double count = 0, x = 0, y = 0, xx = 0, xy = 0;
      for (int i = 0; i <= length; ++i) {
        const double place = i * step, value = spline_.at(start + place);
        const double less = std::max(1.0, std::abs(value) / most_), weight = 1 / (less * less);
        count += weight, x += weight * place, y += weight * value;
        xx += weight * place * place, xy += weight * place * value;
      }
      slope_ = (count * xy - x * y) / (count * xx - x * x);
      tail_ = high_, value_ = (y - slope_ * x) / count + slope_ * (high_ - start);
      move_tail();
      if (tail_ < start + step) return;
    }
  }

  // Extends the line to lower places.
  void move_tail() {
    const double from = std::min(tail_, spline_.high()), step = (from - low()) / samples;
    double tail = from;
    for (int left = samples - 1; left > 0 && off(tail) < most_off; --left) tail -= step;
    tail = std::min(tail + step, from);
    value_ += slope_ * (tail - tail_), tail_ = tail;
  }

  Spline spline_;
  double most_ = 1, high_ = 0, tail_ = 0, value_ = 0, slope_ = 0;
};

}  // namespace anybit::lowbit
