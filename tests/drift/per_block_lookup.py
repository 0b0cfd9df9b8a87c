"""UCM's PosixStore answering lookups per block by its own hand, and how a human merges that."""

CC, HEADER = (f"ucm/store/posix/cc/space_manager.{end}" for end in ("cc", "h"))
TEST = "ucm/store/test/case/posix/posix_space_manager_test.cc"
OURS = "ucm/store/test/case/posix/posix_lookup_test.cc"

# What upstream does: file -> (old, new) in its 0.5.0.
UPSTREAM = {
    HEADER: [
        (
            "    HotnessTracker hotnessTracker_;\n",
            "    size_t blockSize_{0};\n    HotnessTracker hotnessTracker_;\n",
        ),
    ],
    CC: [
        (
            '#include "space_manager.h"\n',
            '#include "space_manager.h"\n#include <sys/stat.h>\n',
        ),
        ('#include "posix_file.h"\n', ""),
        (
            "    gcEnable_ = config.posixGcEnable",
            "    blockSize_ = config.deviceId >= 0 ? config.blockSize : 0;\n"
            "    gcEnable_ = config.posixGcEnable",
        ),
        (
            """    auto res = LookupOnPrefix(blocks, num);
    if (!res) [[unlikely]] { return res.Error(); }
    const auto index = res.Value();
    for (ssize_t i = 0; i <= index; ++i) { results[i] = true; }
""",
            """    for (size_t i = 0; i < num; ++i) {
        results[i] = Lookup(blocks + i);
        if (results[i] && hotnessTrackerEnable_) { hotnessTracker_.Touch(blocks[i]); }
    }
""",
        ),
        (
            """    PosixFile file{path};
    constexpr auto mode =
        PosixFile::AccessMode::EXIST | PosixFile::AccessMode::READ | PosixFile::AccessMode::WRITE;
    auto s = file.Access(mode);
    if (s.Failure()) {
        if (s != Status::NotFound()) { UC_ERROR("Failed({}) to access file({}).", s, path); }
        return false;
    }
    return true;
""",
            """    struct stat info;
    if (stat(path.c_str(), &info) != 0) {
        if (errno != ENOENT) { UC_ERROR("Failed({}) to stat file({}).", errno, path); }
        return false;
    }
    if (!S_ISREG(info.st_mode)) { return false; }
    return blockSize_ == 0 || static_cast<size_t>(info.st_size) == blockSize_;
""",
        ),
    ],
    TEST: [("expected{true, true, false, false}", "expected{true, true, false, true}")],
}

# What the one who moves the series does at each conflict, by a word of the entry's name:
# upstream's side of the file stays, and these edits bring what upstream still lacks.
LOOKUP = UPSTREAM[CC][-1][1]
SOLUTIONS = {
    # Nothing of the entry but its tests, less the one that pins how our lookup spread.
    "lookup-per-key": {CC: [], HEADER: []},
    "only-when-it-is-whole": {
        CC: [
            (
                f"    const auto& path = layout_.DataFilePath(*block, false);\n{LOOKUP}",
                "    return layout_.Contains(*block, blockSize_);\n",
            ),
            ("#include <sys/stat.h>\n", ""),
        ],
        HEADER: [],
    },
    "until-their-i-o-ends": {
        CC: [
            (
                "    for (size_t i = 0; i < num; ++i) {\n",
                "    if (layout_.Guard().Stalled()) [[unlikely]] { return results; }\n"
                "    StallGuard::Scope io{layout_.Guard()};\n"
                "    for (size_t i = 0; i < num; ++i, io.Next()) {\n",
            ),
            (
                "    if (num == 0) { return static_cast<ssize_t>(-1); }\n",
                "    if (num == 0) { return static_cast<ssize_t>(-1); }\n"
                "    if (layout_.Guard().Stalled()) [[unlikely]] { return static_cast<ssize_t>(-1); }\n",
            ),
            (
                "    for (size_t i = ctx.begin; i < ctx.end; i += ctx.nWorker) {\n",
                "    StallGuard::Scope io{layout_.Guard()};\n"
                "    for (size_t i = ctx.begin; i < ctx.end; i += ctx.nWorker, io.Next()) {\n",
            ),
        ],
    },
    # Upstream's prefix lookup had threads of its own in every store: the caller asks instead.
    "share-the-i-o-threads": {
        CC: [
            ("    auto prefixSuccess =\n", "    return Status::OK();\n", ""),
            (
                "    std::shared_ptr<std::atomic<ssize_t>> firstFail;\n",
                "}\n\nuint8_t SpaceManager::Lookup",
                "    StallGuard::Scope io{layout_.Guard()};\n"
                "    for (size_t i = 0; i < num; ++i, io.Next()) {\n"
                "        if (!Lookup(blocks + i)) { return static_cast<ssize_t>(i) - 1; }\n"
                "        if (hotnessTrackerEnable_) { hotnessTracker_.Touch(blocks[i]); }\n"
                "    }\n"
                "    return static_cast<ssize_t>(num) - 1;\n",
            ),
            ("void SpaceManager::OnLookupPrefix(", "}  // namespace", ""),
        ],
        HEADER: [
            ("    struct PrefixLookupContext {\n", "private:\n", ""),
            ("    ThreadPool<PrefixLookupContext>", "    size_t blockSize_", ""),
            ("    void OnLookupPrefix(", "};\n", ""),
        ],
    },
    "when-nothing-else-can-fail": {
        CC: [
            (
                "    s = tempSweeper_.Start(layout_.TempFolders(), config.timeoutMs);\n"
                "    if (s.Failure()) [[unlikely]] { return s; }\n",
                "",
            ),
            (
                "    return Status::OK();\n}\n",
                "    // Last, so that a store which is refused leaves nothing behind.\n"
                "    s = layout_.MakeFolders();\n"
                "    if (s.Failure()) [[unlikely]] { return s; }\n"
                "    return tempSweeper_.Start(layout_.TempFolders(), config.timeoutMs);\n}\n",
            ),
        ],
    },
}

_GC = (
    "    if (gcEnable_) {\n"
    "        s = gcMgr_.Setup(&layout_, config);\n"
    "        if (s.Failure()) [[unlikely]] { return s; }\n"
    "    }\n"
)
SOLUTIONS["collect-only-the-store-s-own"] = {
    CC: [
        (_GC, ""),
        ("    return tempSweeper_.Start(", f"{_GC}    return tempSweeper_.Start("),
    ],
}
SOLUTIONS["collect-last-what"] = {
    CC: [
        (
            "    if (hotnessTrackerEnable_) {\n        s = hotnessTracker_.Setup(&layout_);\n",
            "    if (hotnessTrackerEnable_ || gcEnable_) {\n"
            "        const auto fresh = std::clamp<size_t>(config.posixGcCheckIntervalSec, 1, 600);\n"
            "        s = hotnessTracker_.Setup(&layout_, static_cast<time_t>(fresh));\n",
        ),
        (
            '#include "logger/logger.h"\n',
            '#include <algorithm>\n#include "logger/logger.h"\n',
        ),
        (
            "uint8_t SpaceManager::Lookup(",
            """void SpaceManager::Touch(const Detail::TaskDesc& task)
{
    if (!gcEnable_) { return; }
    std::vector<Detail::BlockId> blocks;
    blocks.reserve(task.size());
    for (const auto& shard : task) {
        if (blocks.empty() || blocks.back() != shard.owner) { blocks.push_back(shard.owner); }
    }
    hotnessTracker_.Touch(blocks.data(), blocks.size());
}

uint8_t SpaceManager::Lookup(""",
        ),
    ],
}

# The test that pins how our lookup spread over threads, and goes with it.
UNPINNED = {"lookup-per-key": (OURS, "SmallOnTheCallerSlowOnThePool")}
