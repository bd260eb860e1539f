/* Files that are in atomic mode beside others that are not.
 *
 *   beside PLAIN PREFIX TIMES
 *
 * PLAIN is never in atomic mode, and is written and read while a thread sets and resets the mode of another file. Of many files PREFIX.NUMBER
 * every second one is in atomic mode. All are opened twice. Prints "done". */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { FILES = 24 };

static MPI_File files[FILES];
static int times;

static void check(int code, const char *what) {
    if (code == MPI_SUCCESS) return;
    fprintf(stderr, "%s failed\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static MPI_File open_file(const char *path) {
    MPI_File file;
    check(MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file), "open");
    return file;
}

static void expect_atomicity(MPI_File file, int expected) {
    int found = -1;
    check(MPI_File_get_atomicity(file, &found), "get_atomicity");
    if (!found != !expected) check(MPI_ERR_OTHER, "the mode of a file");
}

/* Sets and resets the mode of a file, and writes in both. */
static void *change(void *of) {
    MPI_File file = *(MPI_File *)of;
    for (int time = 0; time < times; time++) {
        int is_atomic = time % 2 == 0, found = -1;
        check(MPI_File_set_atomicity(file, is_atomic), "set_atomicity");
        expect_atomicity(file, is_atomic);
        check(MPI_File_write_at(file, 0, &time, 1, MPI_INT, MPI_STATUS_IGNORE), "write_at");
        check(MPI_File_read_at(file, 0, &found, 1, MPI_INT, MPI_STATUS_IGNORE), "read_at");
        if (found != time) check(MPI_ERR_OTHER, "what was written");
    }
    check(MPI_File_set_atomicity(file, 0), "set_atomicity");
    return NULL;
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    if (argc < 4 || provided != MPI_THREAD_MULTIPLE) MPI_Abort(MPI_COMM_WORLD, 2);
    times = atoi(argv[3]);
    /* The second time, files may have the handles that others had. */
    for (int round = 0; round < 2; round++) {
        for (int file = 0; file < FILES; file++) {
            char name[4096];
            snprintf(name, sizeof name, "%s.%d", argv[2], file);
            files[file] = open_file(name);
            if (file % 2 == round) check(MPI_File_set_atomicity(files[file], 1), "set_atomicity");
        }
        MPI_File plain = open_file(argv[1]);
        expect_atomicity(plain, 0);
        for (int file = 0; file < FILES; file++) expect_atomicity(files[file], file % 2 == round);

        pthread_t thread;
        pthread_create(&thread, NULL, change, &files[1 - round]);
        for (int time = 0; time < times; time++) {
            MPI_Offset behind = -1;
            int mine = 1000 * round + time, found = -1;
            check(MPI_File_seek(plain, 4 * time, MPI_SEEK_SET), "seek");
            check(MPI_File_write(plain, &mine, 1, MPI_INT, MPI_STATUS_IGNORE), "write");
            check(MPI_File_get_position(plain, &behind), "get_position");
            check(MPI_File_read_at(plain, 4 * time, &found, 1, MPI_INT, MPI_STATUS_IGNORE), "read_at");
            if (found != mine || behind != 4 * time + 4) check(MPI_ERR_OTHER, "what was written");
        }
        pthread_join(thread, NULL);

        expect_atomicity(plain, 0);
        for (int file = 0; file < FILES; file++) expect_atomicity(files[file], file % 2 == round);
        for (int file = 0; file < FILES; file++) check(MPI_File_close(&files[file]), "close");
        check(MPI_File_close(&plain), "close");
    }
    puts("done");
    MPI_Finalize();
    return 0;
}
