// text/stop_matcher.h -- ends a streamed answer at a stop string.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace se::text {

// Text before a stop string is passed on, the stop string and what follows is not. Text that may be the
// beginning of one is held back. Of several stop strings the one that is complete first wins, the longest
// if two end together; so the result does not depend on how the text is cut into pieces. One thread.
class StopMatcher {
 public:
  // Empty stop strings are ignored.
  explicit StopMatcher(std::vector<std::string> stops = {});

  // The part of all text so far that may be shown now and was not before.
  std::string push(std::string_view text);
  // What was held back, once no more text comes; empty after a stop.
  std::string finish();

  bool stopped() const { return stopped_; }
  // The stop string that was found; empty before.
  const std::string& found() const { return found_; }

 private:
  size_t possible_beginning() const;  // bytes at the end of held_ that a stop string may begin with

  std::vector<std::string> stops_;  // longest first
  std::string held_, found_;
  bool stopped_ = false;
};

}  // namespace se::text
