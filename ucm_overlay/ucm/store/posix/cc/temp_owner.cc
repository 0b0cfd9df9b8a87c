/**
 * MIT License
 *
 * Copyright (c) 2026 the UCM HiCache v2 contributors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to deal
 * in the Software without restriction, including without limitation the rights
 * to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
 * copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all
 * copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
 * SOFTWARE.
 * */
#include "temp_owner.h"
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <sstream>
#include <unistd.h>
#include <vector>

namespace UC::PosixStore {

static constexpr const char* unknown = "0";

static std::string StartTime(const std::string& pid)
{
    std::ifstream file{fmt::format("/proc/{}/stat", pid)};
    std::string line;
    std::getline(file, line);
    // The second field is a command name in brackets, which may hold anything.
    std::istringstream fields{line.substr(std::min(line.size(), line.rfind(')') + 1))};
    constexpr size_t startTime = 19;  // counted from the third field on
    std::string field;
    for (size_t i = 0; i <= startTime; i++) {
        if (!(fields >> field)) { return {}; }
    }
    return field;
}

static std::string PidNamespace()
{
    char link[64];
    const auto n = readlink("/proc/self/ns/pid", link, sizeof(link));
    std::string digits;
    for (ssize_t i = 0; i < n; i++) {
        if (isdigit(link[i])) { digits += link[i]; }
    }
    return digits.empty() ? unknown : digits;
}

TempOwner TempOwner::Self()
{
    TempOwner self;
    self.pid = std::to_string(getpid());
    self.startTime = StartTime(self.pid);
    if (self.startTime.empty()) { self.startTime = unknown; }
    self.pidNamespace = PidNamespace();
    std::ifstream{"/proc/sys/kernel/random/boot_id"} >> self.bootId;
    if (self.bootId.empty()) { self.bootId = unknown; }
    char host[256] = "";
    gethostname(host, sizeof(host) - 1);
    self.host = host;
    return self;
}

TempOwner TempOwner::Parse(const std::string& fileName)
{
    std::vector<std::string> fields;
    std::istringstream name{fileName};
    for (std::string field; fields.size() < 6 && std::getline(name, field, '.');) {
        fields.push_back(field);
    }
    TempOwner owner;
    if (fields.size() < 6 || !std::getline(name, owner.host)) { return {}; }
    owner.pid = fields[2];
    owner.startTime = fields[3];
    owner.pidNamespace = fields[4];
    owner.bootId = fields[5];
    return owner;
}

std::string TempOwner::Suffix() const
{
    return fmt::format("{}.{}.{}.{}.{}", pid, startTime, pidNamespace, bootId, host);
}

bool TempOwner::Dead(const TempOwner& self) const
{
    // Only within one boot, which is one host's, and one pid namespace does a pid tell anything.
    if (bootId != self.bootId || pidNamespace != self.pidNamespace) { return false; }
    // What /proc did not tell is the same for everybody.
    if (bootId == unknown || pidNamespace == unknown || startTime == unknown) { return false; }
    if (kill(atoi(pid.c_str()), 0) != 0 && errno == ESRCH) { return true; }
    const auto now = StartTime(pid);
    return !now.empty() && now != startTime;
}

}  // namespace UC::PosixStore
