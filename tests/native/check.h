/* check.h - the smallest test harness: a failed check says where and ends the program. */
#ifndef MPQ_TEST_CHECK_H
#define MPQ_TEST_CHECK_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_EQ(have, want)                                                                       \
    do {                                                                                           \
        uint64_t have_ = (uint64_t)(have), want_ = (uint64_t)(want);                               \
        if (have_ != want_) {                                                                      \
            fprintf(stderr, "%s:%d: %s is %" PRIu64 " (0x%" PRIx64 "), expected %" PRIu64 "\n",    \
                    __FILE__, __LINE__, #have, have_, have_, want_);                               \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* A status of the core together with the error that it filled. */
#define CHECK_STATUS(call, want, error)                                                            \
    do {                                                                                           \
        mpq_status status_ = (call);                                                               \
        if (status_ != (want)) {                                                                   \
            fprintf(stderr, "%s:%d: %s gave %s, expected %s: %s\n", __FILE__, __LINE__, #call,     \
                    mpq_status_name(status_), mpq_status_name(want),                               \
                    status_ == MPQ_OK ? "" : (error).message);                                     \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#define RUN(test)                                                                                  \
    do {                                                                                           \
        test();                                                                                    \
        printf("ok %s\n", #test);                                                                  \
    } while (0)

#endif
