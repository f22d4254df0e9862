#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace se::text {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
  std::stable_sort(stops_.begin(), stops_.end(), [](const std::string& a, const std::string& b) {
    return a.size() > b.size();
  });
}

std::string StopMatcher::push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  size_t end = std::string::npos;  // of the match that is complete first
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == held_.npos || at + stop.size() >= end) continue;
    end = at + stop.size();
    found_ = stop;
  }
  if (end != std::string::npos) {
    stopped_ = true;
    held_.resize(end - found_.size());
    return std::exchange(held_, {});
  }
  const size_t certain = held_.size() - possible_beginning();
  std::string out = held_.substr(0, certain);
  held_.erase(0, certain);
  return out;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

size_t StopMatcher::possible_beginning() const {
  size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > longest; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) longest = n;
    }
  }
  return longest;
}

}  // namespace se::text
