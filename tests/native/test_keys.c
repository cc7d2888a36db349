/* The list of keys in meta: read without joining, added to by one process at a time, bounded. */
#include "fixture.h"

static struct mpq_key key(uint32_t id)
{
    struct mpq_key made = {.id = id};
    memset(made.check, (int)id, sizeof made.check);
    return made;
}

static mpq_status add(struct mpq_queue *queue, const struct mpq_key *newest, uint32_t id)
{
    const struct mpq_call call = FOREVER;
    const struct mpq_key added = key(id);
    struct mpq_error error;
    return mpq_key_add(queue, newest, &added, &call, &error);
}

static void look_ok(const struct fixture *fixture, struct mpq_look *look)
{
    struct mpq_error error;
    CHECK_STATUS(mpq_look(fixture->path, NULL, look, &error), MPQ_OK, error);
}

static void looking_joins_nothing_and_makes_nothing(void)
{
    struct fixture fixture;
    struct mpq_look look;
    struct mpq_error error;
    fixture_make(&fixture);
    CHECK_STATUS(mpq_look(fixture.path, NULL, &look, &error), MPQ_NOT_A_QUEUE, error);
    CHECK(access(fixture.path, F_OK) != 0);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_NONE);
    strcpy(args.options.codec, "json+aes");
    args.given |= MPQ_GIVEN_CODEC;
    struct mpq_queue *queue = open_queue(&args);
    look_ok(&fixture, &look);
    CHECK(memcmp(look.uuid, mpq_uuid(queue), 16) == 0);
    CHECK(strcmp(look.codec, "json+aes") == 0);
    CHECK_EQ(look.keys_count, 0);
    close_queue(queue);
    fixture_remove(&fixture);
}

static void who_judged_by_an_older_list_adds_nothing(void)
{
    struct fixture fixture;
    struct mpq_look look;
    fixture_make(&fixture);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_NONE);
    struct mpq_queue *one = open_queue(&args), *other = open_queue(&args);
    const struct mpq_key first = key(1), changed = {.id = 1}, second = key(2);
    CHECK(add(one, NULL, 1) == MPQ_OK);
    CHECK(add(other, NULL, 2) == MPQ_STALE);
    CHECK(add(other, &changed, 2) == MPQ_STALE);
    CHECK(add(other, &first, 2) == MPQ_OK);
    CHECK(add(one, &first, 3) == MPQ_STALE);
    CHECK(add(one, &second, 3) == MPQ_OK);
    look_ok(&fixture, &look);
    CHECK_EQ(look.keys_count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        const struct mpq_key wanted = key(i + 1);
        CHECK_EQ(look.keys[i].id, i + 1);
        CHECK(memcmp(look.keys[i].check, wanted.check, sizeof wanted.check) == 0);
        CHECK(look.keys[i].since != 0);
    }
    close_queue(other);
    close_queue(one);
    fixture_remove(&fixture);
}

static void beyond_the_bound_the_oldest_is_forgotten(void)
{
    struct fixture fixture;
    struct mpq_look look, open;
    struct mpq_error error;
    fixture_make(&fixture);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_NONE);
    struct mpq_queue *queue = open_queue(&args);
    CHECK(add(queue, NULL, 1) == MPQ_OK);
    for (uint32_t id = 2; id <= MPQ_KEYS + 3; id++) {
        const struct mpq_key newest = key(id - 1);
        CHECK(add(queue, &newest, id) == MPQ_OK);
    }
    const struct mpq_call call = FOREVER;
    CHECK_STATUS(mpq_keys_get(queue, &open, &call, &error), MPQ_OK, error);
    close_queue(queue);
    look_ok(&fixture, &look);
    CHECK_EQ(look.keys_count, MPQ_KEYS);
    CHECK_EQ(look.keys[0].id, 4);
    CHECK_EQ(look.keys[MPQ_KEYS - 1].id, MPQ_KEYS + 3);
    CHECK(memcmp(look.keys, open.keys, sizeof look.keys) == 0);
    fixture_remove(&fixture);
}

int main(void)
{
    RUN(looking_joins_nothing_and_makes_nothing);
    RUN(who_judged_by_an_older_list_adds_nothing);
    RUN(beyond_the_bound_the_oldest_is_forgotten);
    return 0;
}
