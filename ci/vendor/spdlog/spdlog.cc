// The parts of spdlog's own library that UCM's logger links against.
#include <mutex>
#include <spdlog/async.h>
#include <spdlog/async_logger-inl.h>
#include <spdlog/cfg/helpers-inl.h>
#include <spdlog/common-inl.h>
#include <spdlog/details/backtracer-inl.h>
#include <spdlog/details/file_helper-inl.h>
#include <spdlog/details/log_msg-inl.h>
#include <spdlog/details/log_msg_buffer-inl.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/details/os-inl.h>
#include <spdlog/details/periodic_worker-inl.h>
#include <spdlog/details/registry-inl.h>
#include <spdlog/details/thread_pool-inl.h>
#include <spdlog/logger-inl.h>
#include <spdlog/pattern_formatter-inl.h>
#include <spdlog/sinks/ansicolor_sink-inl.h>
#include <spdlog/sinks/base_sink-inl.h>
#include <spdlog/sinks/basic_file_sink-inl.h>
#include <spdlog/sinks/rotating_file_sink-inl.h>
#include <spdlog/sinks/sink-inl.h>
#include <spdlog/sinks/stdout_color_sinks-inl.h>
#include <spdlog/spdlog-inl.h>

using spdlog::details::console_mutex;
using spdlog::details::console_nullmutex;
using spdlog::details::null_mutex;
using std::mutex;

template class spdlog::details::mpmc_blocking_queue<spdlog::details::async_msg>;
template class spdlog::sinks::base_sink<mutex>;
template class spdlog::sinks::base_sink<null_mutex>;
template class spdlog::sinks::basic_file_sink<mutex>;
template class spdlog::sinks::basic_file_sink<null_mutex>;
template class spdlog::sinks::rotating_file_sink<mutex>;
template class spdlog::sinks::rotating_file_sink<null_mutex>;
template class spdlog::sinks::ansicolor_sink<console_mutex>;
template class spdlog::sinks::ansicolor_sink<console_nullmutex>;
template class spdlog::sinks::ansicolor_stdout_sink<console_mutex>;
template class spdlog::sinks::ansicolor_stdout_sink<console_nullmutex>;
template class spdlog::sinks::ansicolor_stderr_sink<console_mutex>;
template class spdlog::sinks::ansicolor_stderr_sink<console_nullmutex>;
