#include "base/log.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace se {
namespace {
LogLevel threshold() {
  static const LogLevel level = [] {
    const char* env = std::getenv("SE_LOG_LEVEL");
    const std::string_view v = env ? env : "warn";
    if (v == "error") return LogLevel::error;
    if (v == "info") return LogLevel::info;
    if (v == "debug") return LogLevel::debug;
    return LogLevel::warn;
  }();
  return level;
}
}  // namespace

bool log_enabled(LogLevel level) { return level <= threshold(); }

void log_line(LogLevel level, const char* event, const std::string& fields) {
  static constexpr const char* kNames[] = {"error", "warn", "info", "debug"};
  const std::string line = format("{} {}{}\n", kNames[int(level)], event, fields);
  std::fwrite(line.data(), 1, line.size(), stderr);  // one write: lines of threads do not mix
}
}  // namespace se
